//! The HTTP edge: takes client connections and has their requests handled.

pub mod error;
pub mod json;
pub mod request_id;
pub mod wire;
