//! Text to tokenised shards and a manifest; a manifest to token batches, the same everywhere.
