//! The comparison of headers, which `cargo xtask headers` makes.

pub(crate) mod compare;
pub(crate) mod declarations;
