//! Programs for GPUs with NCCL, as users of the crate cudarc write them: `PROGRAM ARGUMENT...`. Each prints `ok` when it succeeds.

mod asynchronous;
mod failures;
mod races;
mod random;
mod rank;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(|argument| &**argument).collect();
    let number = |text: &str| text.parse().expect("a number");
    match arguments[..] {
        ["asynchronous", name] => asynchronous::run(name),
        ["failures", name] => failures::run(name),
        ["races", name, count] => races::run(name, number(count)),
        ["random", first, count] => random::run(number(first), number(count)),
        _ => panic!("there is no program {arguments:?}"),
    }
    println!("ok");
}
