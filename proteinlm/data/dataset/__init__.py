"""The dataset on disk: TFDS files, manifest, statistics, datasheet."""
