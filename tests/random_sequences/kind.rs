//! The kinds of steps, each of which can be left out.

use std::sync::OnceLock;

macro_rules! define_kinds {
    ($($kind:ident $name:literal $does:literal)*) => {
        /// A kind of what a rank may do.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Kind { $(#[doc = $does] $kind),* }

        impl Kind {
            const ALL: &[(&'static str, Self)] = &[$(($name, Self::$kind)),*];
        }
    };
}

define_kinds! {
    // Operations, and what a communicator has.
    AllReduce "all_reduce" "Sums, and looks at the sums."
    AllGather "all_gather" "Gathers and broadcasts."
    Exchange "exchange" "Sends and receives in a group."
    Barrier "barrier" "Waits for all."
    PreMulSum "pre_mul_sum" "Reduces with an operator of its own, which may end on another thread."
    Alloc "alloc" "Allocates, reduces and frees memory of NCCL's."
    Register "register" "Registers memory, and ends that now, later or on another thread."
    Window "window" "Puts into a window, and ends it now, later or on another thread."
    Suspend "suspend" "Suspends the memory and resumes."
    Query "query" "Asks for state and memory."
    // Groups.
    FailingGroup "failing_group" "Fails, or panics, in a group, and goes on with a child."
    InitInGroup "init_in_group" "Creates a communicator in a group."
    MixedGroup "mixed_group" "Creates a communicator, whose other rank never comes, beside an operation."
    GroupTimeout "group_timeout" "Limits the wait of a group, with a rank that is late."
    // Code of the user that the library runs.
    RefusedBuffer "refused_buffer" "Passes a buffer that refuses, and may reenter."
    PanickingText "panicking_text" "Passes a buffer that refuses with an error whose text panics."
    PanickingBuffer "panicking_buffer" "Passes a buffer that panics."
    Guard "guard" "Passes a buffer whose guard uses the communicator, a new group, or the old one, when it is dropped."
    NestedAfterEnd "nested_after_end" "Opens a group inside one that has ended, from a guard."
    PanickingGuard "panicking_guard" "Passes a buffer whose guard panics when it is dropped."
    PanickingWaker "panicking_waker" "Polls a future with a waker that panics, with a payload that panics too."
    UnrulyObserver "unruly_observer" "Has an observer that panics, with a payload that panics too, and uses NCCL."
    PanickingWatchdog "panicking_watchdog" "Has a watchdog whose function panics, with a payload that panics too."
    // Children.
    Split "split" "Splits."
    Shrink "shrink" "Shrinks."
    Grow "grow" "Grows."
    Borrowed "borrowed" "Borrows a communicator, and uses it in a group with a limit and a rank that is late."
    // Futures.
    InitAsync "init_async" "Joins by a future."
    SplitAsync "split_async" "Splits by a future."
    EndAsync "end_async" "Finalizes or destroys by a future."
    DropFuture "drop_future" "Drops futures half-way."
    ForgetFuture "forget_future" "Forgets futures half-way."
    // Others that look or end.
    Abort "abort" "Aborts by handles, on other threads."
    AbortInCall "abort_in_call" "Aborts by handles while a communicator is created from this one."
    Watchdog "watchdog" "Watches, and aborts one or all."
    Record "record" "Begins to record, at any time, and reads the records on another thread."
    RecordInGroup "record_in_group" "Begins to record in a group, of which an operation is then refused."
    Leave "leave" "Leaves the program of the ranks: too early, too late, or with another operation."
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
