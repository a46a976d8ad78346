import hashlib

from proteinlm.data.sources.digests import digest


def test_a_digest_is_the_md5_that_uniparc_carries():
    assert digest(b"MKVL") == hashlib.md5(b"MKVL").digest()
