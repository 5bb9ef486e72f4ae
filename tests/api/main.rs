//! Guarantees to users of the API, and the compiler's messages.

mod compile_errors;
mod guarantees;
mod values;
