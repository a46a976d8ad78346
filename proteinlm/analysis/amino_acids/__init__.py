"""Similarity of amino acids in attention, compared with BLOSUM."""
