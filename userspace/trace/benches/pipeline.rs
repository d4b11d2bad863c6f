//! Speed of the line from records to batches.

fn main() {}
