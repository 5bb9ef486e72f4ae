//! What users of the API rely on: guarantees, the compiler's messages, and the absence of other bindings' defects.

mod compile_errors;
mod guarantees;
mod regressions;
