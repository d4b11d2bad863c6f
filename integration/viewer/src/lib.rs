//! Nothing: the manifest is the point.
