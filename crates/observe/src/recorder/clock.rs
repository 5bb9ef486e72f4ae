use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A clock that reads the processor's counter, which takes one or two instructions instead of dozens for the system's clock.
///
/// The counter runs at a constant rate; on x86-64, all processors of the last 15 years have such a counter (invariant TSC). The
/// rate is measured with the system's clock, from the start until a time is needed.
#[derive(Debug)]
pub(super) struct Clock {
    start: Instant,
    start_ticks: u64,
    /// The time of the start, in nanoseconds since 1970.
    start_time: u64,
}

/// The rate of a clock at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale<'a> {
    clock: &'a Clock,
    nanoseconds: u128,
    ticks: u128,
}

/// Returns the lower and the upper half of the processor's counter, each from its register.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn halves() -> [u32; 2] {
    let (lower, upper);
    // SAFETY: every x86-64 processor has the instruction, which writes these two registers. (The compiler would put the
    // halves of `_rdtsc` together, and apart again.)
    unsafe {
        std::arch::asm!("rdtsc", out("eax") lower, out("edx") upper, options(nomem, nostack, preserves_flags));
    }
    [lower, upper]
}

/// Returns the halves of the processor's counter.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub(super) fn halves() -> [u32; 2] {
    let ticks: u64;
    // SAFETY: reads a register that is open to user code on Linux.
    unsafe {
        std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags))
    };
    [ticks as u32, (ticks >> 32) as u32]
}

/// Returns the halves of the system's time in nanoseconds, on processors whose counter is not supported.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) fn halves() -> [u32; 2] {
    let ticks = now();
    [ticks as u32, (ticks >> 32) as u32]
}

/// Returns the system's time in nanoseconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

pub(super) fn ticks() -> u64 {
    let [lower, upper] = halves().map(u64::from);
    upper << 32 | lower
}

impl Clock {
    pub(super) fn new() -> Self {
        Self { start_time: now(), start: Instant::now(), start_ticks: ticks() }
    }

    pub(super) fn scale(&self) -> Scale<'_> {
        let (nanoseconds, ticks) = (self.start.elapsed().as_nanos(), ticks());
        Scale { clock: self, nanoseconds, ticks: ticks.saturating_sub(self.start_ticks).max(1).into() }
    }
}

impl Scale<'_> {
    /// Converts a value of the counter to nanoseconds since 1970.
    pub(super) fn time(self, ticks: u64) -> u64 {
        let ticks = u128::from(ticks.saturating_sub(self.clock.start_ticks));
        self.clock.start_time.saturating_add((ticks * self.nanoseconds / self.ticks) as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::{Clock, now, ticks};

    #[test]
    fn ticks_are_converted_to_the_time_of_the_system() {
        let clock = Clock::new();
        thread::sleep(Duration::from_millis(20));
        let (ticks, now) = (ticks(), now());
        thread::sleep(Duration::from_millis(20));
        let difference = clock.scale().time(ticks).abs_diff(now);
        assert!(difference < 5_000_000, "{difference} ns");
        assert!(clock.scale().time(0) <= now);
    }
}
