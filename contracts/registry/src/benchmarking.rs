//! What each call costs, at its worst.
