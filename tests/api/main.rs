//! What users of the API rely on: guarantees, and the compiler's messages.

mod compile_errors;
mod guarantees;
mod values;
