//! The API's own description, as an `OpenAPI` 3.1 document.
//!
//! Written by hand, because it says more than types do; its tests hold it against the code.

/// The path where it is served, without a key.
pub(super) const PATH: &str = "/openapi.json";

/// The document.
pub(super) const DOCUMENT: &str = include_str!("openapi/openapi.json");

#[cfg(test)]
mod tests;
