"""Small structures written as PDB and mmCIF, for the tests of contacts."""

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


def protein_atoms(letters, places, *, chain="A", first=1, missing=()):
    """Return (kind, atom, residue, chain, number, place) of C-alpha and C-beta; C-beta is at `places`."""
    atoms = []
    for number, (letter, place) in enumerate(zip(letters, places, strict=True), first):
        if number in missing:
            continue
        name = protein_letters_1to3[letter].upper()
        if letter == "G":
            atoms.append(("ATOM", "CA", name, chain, number, place))
        else:
            # Far from everything: C-alpha in place of C-beta would give no contact at all.
            atoms.append(("ATOM", "CA", name, chain, number, (place[0], place[1], place[2] + 500 + 20 * number)))
            atoms.append(("ATOM", "CB", name, chain, number, place))
    return atoms


def pdb_text(atoms, sequences=None):
    """Return a PDB file; `sequences` maps chains to letters for SEQRES."""
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
    """Return an mmCIF file; chains are the authors', `label` maps them to mmCIF's own names."""
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
    """Return places of a strand that turns in its middle and comes back, C-beta of i beside that of n - 1 - i."""
    half = len(letters) / 2
    return [
        (step * min(i, len(letters) - 1 - i), 0.0 if i < half else apart, 0.0) for i in range(len(letters))
    ]  # fmt: skip
