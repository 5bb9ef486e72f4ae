//! Where it was measured, for whoever reads the figures.

use std::fs;
use std::thread;
use std::time::Duration;

/// The share of the processors' time from which on others are a disturbance.
const DISTURBED: f64 = 0.05;

/// The machine in a line, and in another whether it was busy with something else.
pub(crate) fn describe(busy: f64) -> String {
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processors
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or(std::env::consts::ARCH, |(_, model)| model);
    let mut text = format!("Number of cores: {}, {model}", cores());
    if busy > DISTURBED {
        text += &format!(
            "\nNOT QUIET: other programs took {:.0}% of the processors, so these figures say little",
            busy * 100.0
        );
    }
    text
}

/// The share of the processors' time that other programs take just now. Nobody's, where the kernel does not say.
pub(crate) fn busy() -> f64 {
    let before = times();
    thread::sleep(Duration::from_millis(500));
    before.zip(times()).map_or(0.0, |(before, after)| share(before, after))
}

pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// The processors' time since the machine started, all of it and idle.
fn times() -> Option<(u64, u64)> {
    parse(fs::read_to_string("/proc/stat").ok()?.lines().next()?)
}

fn parse(line: &str) -> Option<(u64, u64)> {
    // User, nice, system, idle, waiting for a disk, interrupts, soft interrupts, another machine on this one.
    let ticks: Vec<u64> =
        line.strip_prefix("cpu ")?.split_whitespace().map_while(|field| field.parse().ok()).collect();
    Some((ticks.iter().take(8).sum(), ticks.get(3)? + ticks.get(4)?))
}

fn share(before: (u64, u64), after: (u64, u64)) -> f64 {
    let (all, idle) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
    if all == 0 { 0.0 } else { 1.0 - idle as f64 / all as f64 }
}

#[cfg(test)]
mod tests {
    use super::{parse, share};

    #[test]
    fn what_is_not_idle_is_busy() {
        let before = parse("cpu  10 0 10 100 0 0 0 0 0 0").unwrap();
        let after = parse("cpu  20 0 20 140 10 5 3 2 7 7").unwrap();
        assert_eq!(before, (120, 100));
        assert_eq!(share(before, after), 0.375);
        assert_eq!(share(after, after), 0.0);
        assert_eq!(parse("intr 5"), None);
    }
}
