//! The kinds of steps, each of which can be left out.

use std::iter::repeat_n;
use std::sync::{LazyLock, OnceLock};

macro_rules! define_kinds {
    ($($kind:ident $times:literal $name:literal $does:literal)*) => {
        /// A kind of what a rank may do.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Kind { $(#[doc = $does] $kind),* }

        impl Kind {
            const ALL: &[(&'static str, Self)] = &[$(($name, Self::$kind)),*];
        }

        /// The kinds of steps, as often as they are taken.
        pub(crate) static STEPS: LazyLock<Vec<Kind>> =
            LazyLock::new(|| [$(repeat_n(Kind::$kind, $times)),*].into_iter().flatten().collect());
    };
}

// After each kind: how often it is in `STEPS`, its name, and what it does.
define_kinds! {
    // Operations, and what a communicator has.
    AllReduce 2 "all_reduce" "Sums, and looks at the sums."
    AllGather 1 "all_gather" "Gathers and broadcasts."
    Exchange 2 "exchange" "Sends and receives in a group."
    Barrier 1 "barrier" "Waits for all."
    PreMulSum 1 "pre_mul_sum" "Reduces with an operator of its own, which may end on another thread."
    Alloc 1 "alloc" "Allocates, reduces and frees memory of NCCL's."
    Register 1 "register" "Registers memory, and ends that now, later or on another thread."
    Window 1 "window" "Puts into a window, and ends it now, later or on another thread."
    Suspend 1 "suspend" "Suspends the memory and resumes."
    Query 1 "query" "Asks for state and memory."
    // Groups.
    FailingGroup 1 "failing_group" "Fails, or panics, in a group, and goes on with a child."
    InitInGroup 1 "init_in_group" "Creates a communicator in a group."
    MixedGroup 1 "mixed_group" "Creates a communicator, whose other rank never comes, beside an operation."
    GroupTimeout 1 "group_timeout" "Limits the wait of a group, with a rank that is late."
    // Code of the user that the library runs.
    RefusedBuffer 1 "refused_buffer" "Passes a buffer that refuses, and may reenter."
    PanickingText 1 "panicking_text" "Passes a buffer that refuses with an error whose text panics."
    PanickingBuffer 1 "panicking_buffer" "Passes a buffer that panics."
    Guard 1 "guard" "Passes a buffer whose guard uses the communicator, a new group or the old one when it is dropped."
    NestedAfterEnd 1 "nested_after_end" "Opens a group inside one that has ended, from a guard."
    PanickingGuard 1 "panicking_guard" "Passes a buffer whose guard panics when it is dropped."
    UnrulyObserver 0 "unruly_observer" "Has an observer that panics, with a payload that panics too, and uses NCCL."
    PanickingWatchdog 0 "panicking_watchdog" "Has a watchdog whose function panics, with a payload that panics too."
    // Children.
    Split 2 "split" "Splits."
    Shrink 1 "shrink" "Shrinks."
    Grow 1 "grow" "Grows."
    Borrowed 1 "borrowed" "Borrows a communicator, and uses it in a group with a limit and a rank that is late."
    // Others that look or end.
    Abort 0 "abort" "Aborts by handles, on other threads."
    AbortInCall 0 "abort_in_call" "Aborts by handles while a communicator is created from this one."
    Watchdog 0 "watchdog" "Watches, and aborts one or all."
    Record 0 "record" "Begins to record, at any time, and reads the records on another thread."
    RecordInGroup 1 "record_in_group" "Begins to record in a group, of which an operation is then refused."
    Leave 0 "leave" "Leaves the program of the ranks: too early, too late, or with another operation."
}

impl Kind {
    /// Returns `false` if `LIBNCCL_TEST_SEQUENCES_WITHOUT`, a list of names with commas, has this kind.
    pub(crate) fn is_on(self) -> bool {
        static WITHOUT: OnceLock<Vec<Kind>> = OnceLock::new();
        let without = WITHOUT.get_or_init(|| {
            let list = std::env::var("LIBNCCL_TEST_SEQUENCES_WITHOUT").unwrap_or_default();
            list.split(',').filter(|name| !name.is_empty()).map(Self::named).collect()
        });
        !without.contains(&self)
    }

    fn named(name: &str) -> Self {
        let found = Self::ALL.iter().find(|(known, _)| *known == name.trim());
        let names = || Self::ALL.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(",");
        found
            .unwrap_or_else(|| {
                panic!("LIBNCCL_TEST_SEQUENCES_WITHOUT names {name:?}; expected some of {}", names())
            })
            .1
    }
}
