//! The machine that runs the measurements.

use std::fs;
use std::thread;
use std::time::Duration;

/// The share of CPU time from which on other programs distort the figures.
const DISTURBED: f64 = 0.05;

/// Returns a line with the cores and the CPU model, and a second one if other programs kept the CPUs `busy`.
pub(crate) fn describe(busy: f64) -> String {
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut text = format!("Number of cores: {}, {}", cores(), processor(&processors));
    if busy > DISTURBED {
        text += &format!(
            "\nNOT QUIET: other programs took {:.0}% of the CPU time, so the figures are unreliable",
            busy * 100.0
        );
    }
    text
}

/// Returns the name of the first processor in `/proc/cpuinfo`, with its family and model, as a virtual machine may give only a
/// brand; the architecture if it has no name.
fn processor(processors: &str) -> String {
    let field = |name: &str| {
        processors.lines().find_map(|line| {
            let (field, value) = line.split_once(':')?;
            (field.trim_end() == name).then(|| value.trim())
        })
    };
    let name = field("model name").unwrap_or(std::env::consts::ARCH);
    match (field("cpu family"), field("model")) {
        (Some(family), Some(model)) => format!("{name} (family {family}, model {model})"),
        _ => name.into(),
    }
}

/// Returns the share of CPU time that other programs take at the moment, 0 if the kernel does not tell.
pub(crate) fn busy() -> f64 {
    let before = times();
    thread::sleep(Duration::from_millis(500));
    before.zip(times()).map_or(0.0, |(before, after)| share(before, after))
}

/// Returns the number of cores that this process may use.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the CPU time since the machine started, in total and idle.
fn times() -> Option<(u64, u64)> {
    parse(fs::read_to_string("/proc/stat").ok()?.lines().next()?)
}

fn parse(line: &str) -> Option<(u64, u64)> {
    // user, nice, system, idle, iowait, irq, softirq, steal
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
    use super::{parse, processor, share};

    #[test]
    fn share_of_busy_time_excludes_idle_and_iowait() {
        let before = parse("cpu  10 0 10 100 0 0 0 0 0 0").unwrap();
        let after = parse("cpu  20 0 20 140 10 5 3 2 7 7").unwrap();
        assert_eq!(before, (120, 100));
        assert_eq!(share(before, after), 0.375);
        assert_eq!(share(after, after), 0.0);
        assert_eq!(parse("intr 5"), None);
    }

    #[test]
    fn processor_is_named_with_family_and_model() {
        let processors = "processor\t: 0\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n";
        assert_eq!(processor(processors), "AMD EPYC (family 26, model 2)");
        assert_eq!(processor("BogoMIPS\t: 50.00\n"), std::env::consts::ARCH);
    }
}
