//! Prints which library each of two crates gets that ask for different backends.

fn main() {
    println!("defaults: {}, links: {}", defaults::backend(), links::backend());
}
