//! The safe layer, seen from below: exactly which C functions it calls, what it makes of each code that they
//! answer, and that it ends each handle once, whatever happens.

mod argument;
mod calls;
mod codes;
mod endings;
mod groups;
mod recorder;
mod waiting;
mod world;
