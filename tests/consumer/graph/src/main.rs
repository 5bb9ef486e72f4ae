//! Prints which library is loaded by each of two crates that enable different backends.

fn main() {
    println!("defaults: {}, links: {}", defaults::backend(), links::backend());
}
