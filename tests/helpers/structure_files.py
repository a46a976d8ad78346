"""Small structures as PDB and mmCIF files, for the tests of contacts."""

from Bio.Data.PDBData import protein_letters_1to3

ATOM = (
    "{kind:<6}{serial:>5} {atom:<4} {residue:>3} {chain}{number:>4}    {x:>8.3f}{y:>8.3f}{z:>8.3f}"
    "  1.00  0.00          {element:>2}"
)
COLUMNS = (
    "group_PDB", "id", "type_symbol", "label_atom_id", "label_alt_id", "label_comp_id", "label_asym_id",
    "label_entity_id", "label_seq_id", "pdbx_PDB_ins_code", "Cartn_x", "Cartn_y", "Cartn_z", "occupancy",
    "B_iso_or_equiv", "auth_seq_id", "auth_comp_id", "auth_asym_id", "auth_atom_id", "pdbx_PDB_model_num",
)  # fmt: skip


def protein_atoms(letters, coordinates, *, chain="A", first=1, missing=()):
    """Return (kind, atom, residue, chain, number, coordinates) of C-alpha and C-beta; C-beta has `coordinates`."""
    atoms = []
    for number, (letter, (x, y, z)) in enumerate(zip(letters, coordinates, strict=True), first):
        if number in missing:
            continue
        name = protein_letters_1to3[letter].upper()
        if letter == "G":
            atoms.append(("ATOM", "CA", name, chain, number, (x, y, z)))
        else:
            # C-alpha is far from all other atoms: code that used it in place of C-beta would find no contact.
            atoms.append(("ATOM", "CA", name, chain, number, (x, y, z + 500 + 20 * number)))
            atoms.append(("ATOM", "CB", name, chain, number, (x, y, z)))
    return atoms


def pdb_text(atoms, sequences=None):
    """Return the text of a PDB file; `sequences` maps chains to letters for SEQRES."""
    lines = []
    for chain, letters in (sequences or {}).items():
        names = [protein_letters_1to3[letter].upper() for letter in letters]
        for row in range(0, len(names), 13):
            lines.append(f"SEQRES {row // 13 + 1:>3} {chain} {len(names):>4}  {' '.join(names[row : row + 13])}")
    for serial, (kind, atom, residue, chain, number, (x, y, z)) in enumerate(atoms, 1):
        element = "C" if kind == "ATOM" or atom in ("CA", "CB") else atom[:1]
        lines.append(ATOM.format(kind=kind, serial=serial, atom=" " + atom, residue=residue, chain=chain,
                                 number=number, x=x, y=y, z=z, element=element))  # fmt: skip
    return "\n".join([*lines, "END", ""])


def cif_text(atoms, sequences=None, label=None):
    """Return the text of an mmCIF file. Chains have the authors' names; `label` maps these to mmCIF's label names."""
    label = label or {}
    lines = ["data_TEST", "loop_", *(f"_atom_site.{column}" for column in COLUMNS)]
    for serial, (kind, atom, residue, chain, number, (x, y, z)) in enumerate(atoms, 1):
        lines.append(f"{kind} {serial} C {atom} . {residue} {label.get(chain, chain)} 1 {number} ? {x:.3f} {y:.3f} "
                     f"{z:.3f} 1.00 0.00 {number} {residue} {chain} {atom} 1")  # fmt: skip
    if sequences:
        lines += ["loop_", *(f"_pdbx_poly_seq_scheme.{c}" for c in ("asym_id", "seq_id", "mon_id", "pdb_strand_id"))]
        for chain, letters in sequences.items():
            for number, letter in enumerate(letters, 1):
                name = protein_letters_1to3[letter].upper()
                lines.append(f"{label.get(chain, chain)} {number} {name} {chain}")
    return "\n".join([*lines, ""])


def hairpin(letters, *, step=3.3, apart=5.0):
    """Return coordinates of a hairpin: C-beta of residue i is beside that of residue n - 1 - i."""
    half = len(letters) / 2
    return [
        (step * min(i, len(letters) - 1 - i), 0.0 if i < half else apart, 0.0) for i in range(len(letters))
    ]  # fmt: skip
