//! An implementation of NCCL that does nothing but to record what it is asked, to answer what it is told to,
//! and to notice what no caller may do.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libnccl::sys::{
    self, Functions, ncclCollConfig_t, ncclComm_t, ncclRedOp_t, ncclResult_t, ncclSimInfo_t, ncclUniqueId,
};
use libnccl::{Nccl, Version};

use crate::argument::{Argument, string, text};

pub(crate) const SUCCESS: u32 = 0;
pub(crate) const INVALID_ARGUMENT: u32 = 4;
pub(crate) const INVALID_USAGE: u32 = 5;
pub(crate) const IN_PROGRESS: u32 = 7;

/// What a communicator that the recorder makes says of itself.
pub(crate) const SIZE: usize = 4;
pub(crate) const RANK: usize = 2;
pub(crate) const DEVICE: i32 = 1;

thread_local! {
    /// The recorder that this thread's calls go to.
    static CURRENT: RefCell<Option<Recorder>> = const { RefCell::new(None) };
}

/// One test's recording; clones share it.
#[derive(Clone)]
pub(crate) struct Recorder(Arc<Mutex<State>>);

struct State {
    version: Version,
    log: Vec<String>,
    /// What was started: at once, or by the end of a group.
    started: Vec<String>,
    queued: Vec<String>,
    answers: Vec<Rule>,
    /// What `ncclCommGetAsyncError` is going to say, before it says success.
    asynchronous: VecDeque<u32>,
    /// What it says when that is used up.
    forever: u32,
    comms: Vec<Comm>,
    /// The communicators that the open group makes.
    pending: Vec<usize>,
    /// Slots that are written when the communicator is no longer in progress.
    late: Vec<*mut ncclComm_t>,
    operators: Vec<(ncclRedOp_t, ncclComm_t)>,
    operators_made: i32,
    depth: u32,
    group_error: u32,
    /// Whether making a communicator leaves a group open when it fails, as 2.23.4 to 2.32.3 do.
    leaks_group: bool,
    size: c_int,
    rank: c_int,
    /// The options of a collective that is in progress: what was passed, and what it was then.
    reading: Option<(*const ncclCollConfig_t, (usize, c_int))>,
    /// How long `ncclCommGetAsyncError` takes.
    slowness: Duration,
    violations: Vec<String>,
}

struct Comm {
    is_alive: bool,
    is_busy: bool,
    ends: u32,
    /// The name that was passed, to which NCCL keeps the pointer, and its text then.
    name: Option<(*const c_char, String)>,
}

struct Rule {
    function: &'static str,
    /// How many calls come first, that it is not for; `None` if it is for all.
    after: Option<usize>,
    code: u32,
}

// SAFETY: its pointers are the tests' own, which outlive it, and are used by one thread at a time.
unsafe impl Send for State {}

impl Recorder {
    /// A recorder of the newest release, for this thread.
    pub(crate) fn new() -> Self {
        Self::of(Version::HEADER)
    }

    /// A recorder that has what `version` has.
    pub(crate) fn of(version: Version) -> Self {
        let state = State {
            version,
            log: Vec::new(),
            started: Vec::new(),
            queued: Vec::new(),
            answers: Vec::new(),
            asynchronous: VecDeque::new(),
            forever: SUCCESS,
            comms: Vec::new(),
            pending: Vec::new(),
            late: Vec::new(),
            operators: Vec::new(),
            operators_made: 0,
            depth: 0,
            group_error: SUCCESS,
            leaks_group: false,
            size: SIZE as c_int,
            rank: RANK as c_int,
            reading: None,
            slowness: Duration::ZERO,
            violations: Vec::new(),
        };
        let recorder = Self(Arc::new(Mutex::new(state)));
        recorder.attach();
        recorder
    }

    /// Makes the calls of the current thread go here.
    pub(crate) fn attach(&self) {
        CURRENT.set(Some(self.clone()));
    }

    pub(crate) fn nccl(&self) -> Nccl {
        let code = self.state().version.code();
        // SAFETY: the functions do what NCCL's documentation says, as far as anyone relies on it.
        let nccl = unsafe { Nccl::from_table("the recorder", table(code)) }.unwrap();
        self.take_log();
        nccl
    }

    /// Has a function answer a code, always.
    pub(crate) fn answer(&self, function: &'static str, code: u32) {
        self.state().answers.push(Rule { function, after: None, code });
    }

    /// Has a function answer a code once, after `after` more calls.
    pub(crate) fn answer_once(&self, function: &'static str, after: usize, code: u32) {
        self.state().answers.push(Rule { function, after: Some(after), code });
    }

    /// Sets what `ncclCommGetAsyncError` says: these, and then `forever`.
    pub(crate) fn asynchronous(&self, codes: impl IntoIterator<Item = u32>, forever: u32) {
        let mut state = self.state();
        state.asynchronous = codes.into_iter().collect();
        state.forever = forever;
    }

    /// How many of the codes are left.
    pub(crate) fn asynchronous_left(&self) -> usize {
        self.state().asynchronous.len()
    }

    /// Their ends are not to be missed.
    pub(crate) fn forget_operators(&self) {
        self.state().operators.clear();
    }

    pub(crate) fn be_slow(&self, slowness: Duration) {
        self.state().slowness = slowness;
    }

    pub(crate) fn leak_groups(&self) {
        self.state().leaks_group = true;
    }

    /// What communicators answer for their size and rank.
    pub(crate) fn size_and_rank(&self, size: c_int, rank: c_int) {
        let mut state = self.state();
        (state.size, state.rank) = (size, rank);
    }

    /// Writes the slots that are still to be written, as NCCL's own thread may at any time; the handles are the
    /// caller's loss.
    pub(crate) fn write_late(&self) -> usize {
        let mut state = self.state();
        let slots = std::mem::take(&mut state.late);
        for slot in &slots {
            // SAFETY: whoever passed the slot keeps it until NCCL is done, which is the test.
            unsafe { **slot = ptr::without_provenance_mut(0xdead) };
        }
        slots.len()
    }

    /// What was called since the last time.
    pub(crate) fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.state().log)
    }

    pub(crate) fn take_started(&self) -> Vec<String> {
        std::mem::take(&mut self.state().started)
    }

    /// Every handle was ended once, every operator, every group; and nothing was used that should not be.
    pub(crate) fn assert_clean(&self, context: &str) {
        let state = self.state();
        let mut problems = state.violations.clone();
        let alive = state.comms.iter().enumerate().filter(|(_, comm)| comm.is_alive);
        problems.extend(alive.map(|(number, _)| format!("comm{number} is never ended")));
        let operators = state.operators.iter().map(|(op, _)| format!("op{} is never destroyed", op.0));
        problems.extend(operators);
        if state.depth > 0 {
            problems.push(format!("the thread is in {} groups", state.depth));
        }
        let log = state.log.join("\n  ");
        drop(state);
        assert!(problems.is_empty(), "{context}: {problems:?}, after\n  {log}");
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn comm_name(raw: ncclComm_t) -> String {
        Self::number(raw).map_or_else(|| "null".into(), |number| format!("comm{number}"))
    }

    /// Handles are numbers, and point to nothing.
    fn handle(number: usize) -> ncclComm_t {
        ptr::without_provenance_mut((number + 1) << 8)
    }

    fn number(raw: ncclComm_t) -> Option<usize> {
        (raw.addr() >> 8).checked_sub(1)
    }

    fn make(&mut self, name: Option<(*const c_char, String)>) -> ncclComm_t {
        self.comms.push(Comm { is_alive: true, is_busy: false, ends: 0, name });
        Self::handle(self.comms.len() - 1)
    }

    /// The live communicator of a call, or a violation.
    fn live(&mut self, function: &str, raw: ncclComm_t) -> Option<&mut Comm> {
        let text = format!("{function} of {}", Self::comm_name(raw));
        match Self::number(raw).and_then(|number| self.comms.get_mut(number)) {
            Some(comm) if comm.is_alive => Some(comm),
            Some(comm) => {
                self.violations.push(format!("{text}, which has ended {} times", comm.ends));
                None
            }
            // A null communicator is an error in NCCL, with which the facade cancels groups.
            None if raw.is_null() && ["ncclAllReduce", "ncclCommGrow"].contains(&function) => None,
            None => {
                self.violations.push(format!("{text}, which is no communicator"));
                None
            }
        }
    }

    fn answer(&mut self, function: &str) -> u32 {
        let mut code = SUCCESS;
        for rule in self.answers.iter_mut().filter(|rule| rule.function == function) {
            match &mut rule.after {
                None => code = rule.code,
                Some(0) => {
                    code = rule.code;
                    rule.after = Some(usize::MAX);
                }
                Some(after) => *after -= 1,
            }
        }
        code
    }
}

/// Any call: records it, and plays NCCL.
fn call(function: &'static str, arguments: &[Argument]) -> u32 {
    if ["ncclGetErrorString", "ncclGetLastError"].contains(&function) {
        return SUCCESS;
    }
    let Some(recorder) = CURRENT.with_borrow(Clone::clone) else {
        return INVALID_USAGE; // Of a thread without a recording.
    };
    let raw = arguments.iter().find_map(|argument| match argument {
        Argument::Comm(raw) => Some(*raw),
        _ => None,
    });
    let mut state = recorder.state();
    state.log.push(text(function, arguments, State::comm_name));
    let Some(raw) = raw else { return state.play(function, arguments) };
    let slowness = if function == "ncclCommGetAsyncError" { state.slowness } else { Duration::ZERO };
    if let Some(comm) = state.live(function, raw) {
        let overlaps = std::mem::replace(&mut comm.is_busy, true);
        let renamed = comm.name.as_ref().is_some_and(|(pointer, text)| string(*pointer) != *text);
        if overlaps {
            state.violations.push(format!("{function} of a communicator that is in another call"));
        }
        if renamed {
            state.violations.push(format!("{function} of a communicator whose name is gone"));
        }
    }
    // Others may call meanwhile.
    drop(state);
    std::thread::sleep(slowness);
    let mut state = recorder.state();
    let code = state.play(function, arguments);
    if let Some(comm) = State::number(raw).and_then(|number| state.comms.get_mut(number)) {
        comm.is_busy = false;
    }
    code
}

const MAKE_AT_ONCE: [&str; 4] =
    ["ncclCommInitRank", "ncclCommInitRankConfig", "ncclCommInitRankScalable", "ncclCommGrow"];
const MAKE_LATER: [&str; 2] = ["ncclCommSplit", "ncclCommShrink"];

impl State {
    fn play(&mut self, function: &'static str, arguments: &[Argument]) -> u32 {
        let code = self.answer(function);
        match function {
            "ncclGroupStart" => {
                if code == SUCCESS || code == IN_PROGRESS {
                    self.depth += 1;
                }
                return code;
            }
            "ncclGroupEnd" | "ncclGroupSimulateEnd" => return self.end_group(code, arguments),
            "ncclCommDestroy" | "ncclCommAbort" => {
                // Ended whatever it answers.
                self.end_comm(arguments);
                return code;
            }
            _ => {}
        }
        let makes = MAKE_AT_ONCE.contains(&function) || function == "ncclCommInitAll";
        if code != SUCCESS && code != IN_PROGRESS {
            if self.depth > 0 {
                self.group_error = code;
            }
            if makes && self.leaks_group {
                self.depth += 1;
            }
            return code;
        }
        let null = matches!(arguments, [.., Argument::Comm(raw), _] if raw.is_null());
        if function == "ncclAllReduce" && null {
            self.group_error = INVALID_ARGUMENT;
            return INVALID_ARGUMENT;
        }
        self.write(function, arguments, code);
        self.read_options(function, arguments, code);
        let is_operation = arguments.iter().any(|argument| matches!(argument, Argument::Type(_)))
            && function != "ncclRedOpCreatePreMulSum";
        if is_operation {
            let line = text(function, arguments, Self::comm_name);
            if self.depth > 0 { self.queued.push(line) } else { self.started.push(line) }
        }
        code
    }

    /// NCCL may read a collective's options as long as it is in progress.
    fn read_options(&mut self, function: &str, arguments: &[Argument], code: u32) {
        // SAFETY: the facade's struct, if it has kept it; that it has is what is tested.
        let fields = |config: *const ncclCollConfig_t| unsafe { ((*config).size, (*config).minCTAs) };
        if function == "ncclCommGetAsyncError"
            && let Some((config, before)) = self.reading.take()
        {
            // What a freed struct would be overwritten with.
            let _others: Vec<Box<[usize; 11]>> = (0..64).map(|_| Box::new([7; 11])).collect();
            if fields(config) != before {
                self.violations.push("a collective in progress has lost its options".into());
            }
        }
        if let (IN_PROGRESS, &[.., Argument::CollConfig(config)]) = (code, arguments) {
            self.reading = Some((config, fields(config)));
        }
    }

    fn end_group(&mut self, mut code: u32, arguments: &[Argument]) -> u32 {
        if self.depth == 0 {
            return INVALID_USAGE;
        }
        self.depth -= 1;
        if self.depth > 0 {
            return code;
        }
        let failed = std::mem::take(&mut self.group_error);
        if failed != SUCCESS {
            code = failed;
        }
        let (queued, pending) = (std::mem::take(&mut self.queued), std::mem::take(&mut self.pending));
        if code == SUCCESS || code == IN_PROGRESS {
            self.started.extend(queued);
            if let [Argument::Out(info)] = *arguments {
                // SAFETY: the caller's struct.
                unsafe { (*info.cast::<ncclSimInfo_t>()).estimatedTime = 12.5 };
            }
        } else {
            for number in pending {
                self.comms[number].is_alive = false;
                self.comms[number].ends += 1;
            }
        }
        code
    }

    fn end_comm(&mut self, arguments: &[Argument]) {
        let &[Argument::Comm(raw)] = arguments else { return };
        if let Some(comm) = Self::number(raw).and_then(|number| self.comms.get_mut(number)) {
            comm.is_alive = false;
            comm.ends += 1;
        }
        self.operators.retain(|(_, comm)| *comm != raw);
    }

    /// Writes what a call that succeeds writes.
    fn write(&mut self, function: &'static str, arguments: &[Argument], code: u32) {
        let out = arguments.iter().find_map(|argument| match argument {
            Argument::Out(out) => Some(*out),
            _ => None,
        });
        if MAKE_AT_ONCE.contains(&function) || MAKE_LATER.contains(&function) {
            self.write_comm(function, arguments, code);
            return;
        }
        let Some(out) = out else {
            if let ("ncclRedOpDestroy", &[Argument::Op(op), Argument::Comm(raw)]) = (function, arguments) {
                let before = self.operators.len();
                self.operators.retain(|operator| *operator != (op, raw));
                if self.operators.len() == before {
                    self.violations.push(format!("op{} of {} is no operator", op.0, Self::comm_name(raw)));
                }
            }
            return;
        };
        // SAFETY: for all of these, the caller's place for a value of the type that the function has there.
        unsafe {
            match function {
                "ncclGetVersion" => *out.cast::<c_int>() = self.version.code().cast_signed(),
                "ncclCommCount" => *out.cast::<c_int>() = self.size,
                "ncclCommUserRank" => *out.cast::<c_int>() = self.rank,
                "ncclCommCuDevice" => *out.cast::<c_int>() = DEVICE,
                "ncclCommMemStats" => *out.cast::<u64>() = 4096,
                "ncclGetUniqueId" | "ncclCommGetUniqueId" => {
                    *out.cast::<ncclUniqueId>() = ncclUniqueId { internal: [9; 128] };
                }
                "ncclCommGetAsyncError" => {
                    let state = self.asynchronous.pop_front().unwrap_or(self.forever);
                    *out.cast::<ncclResult_t>() = ncclResult_t(state);
                    if state == SUCCESS {
                        for slot in std::mem::take(&mut self.late) {
                            *slot = self.make(None);
                        }
                    }
                }
                "ncclCommInitAll" => {
                    let &[_, Argument::Number(count), _] = arguments else { return };
                    for index in 0..count as usize {
                        *out.cast::<ncclComm_t>().add(index) = self.make(None);
                    }
                }
                "ncclRedOpCreatePreMulSum" => {
                    let &[.., Argument::Comm(raw)] = arguments else { return };
                    self.operators_made += 1;
                    let op = ncclRedOp_t((4 + self.operators_made) as _);
                    self.operators.push((op, raw));
                    *out.cast::<ncclRedOp_t>() = op;
                }
                "ncclMemAlloc" => *out.cast::<*mut c_void>() = ptr::without_provenance_mut(0x4_0000),
                "ncclParamBind" => *out.cast::<*mut c_void>() = ptr::without_provenance_mut(0x77),
                "ncclParamGetI8" | "ncclParamGetU8" => *out.cast::<u8>() = 7,
                "ncclParamGetI16" | "ncclParamGetU16" => *out.cast::<u16>() = 7,
                "ncclParamGetI32" | "ncclParamGetU32" => *out.cast::<u32>() = 7,
                "ncclParamGetI64" | "ncclParamGetU64" => *out.cast::<u64>() = 7,
                "ncclParamGetStr" | "ncclParamGetParameter" => {
                    *out.cast::<*const c_char>() = c"value".as_ptr();
                }
                "ncclParamGet" => {
                    let &[_, Argument::Address(_), _, Argument::Out(length)] = arguments else { return };
                    *length.cast::<c_int>() = 3;
                }
                "ncclParamGetAllParameterKeys" => {
                    let &[_, Argument::Out(length)] = arguments else { return };
                    *length.cast::<c_int>() = 0;
                }
                _ => {}
            }
        }
    }

    fn write_comm(&mut self, function: &'static str, arguments: &[Argument], code: u32) {
        // The place for the handle is the last of these; Shrink's list is another.
        let slot = arguments.iter().rev().find_map(|argument| match argument {
            Argument::Out(slot) => Some(slot.cast::<ncclComm_t>()),
            _ => None,
        });
        let slot = match (function, arguments) {
            ("ncclCommInitRankScalable", [Argument::Out(slot), ..]) => Some(slot.cast()),
            _ => slot,
        };
        let Some(slot) = slot else { return };
        let no_color = matches!(arguments, [_, Argument::Number(-1), ..]) && function == "ncclCommSplit";
        let name = arguments.iter().find_map(|argument| match argument {
            // SAFETY: null or the caller's struct.
            Argument::Config(config) => unsafe { config.as_ref() }.map(|config| config.commName),
            _ => None,
        });
        let name = name.filter(|name| !name.is_null()).map(|name| (name, string(name)));
        // Whatever the call answers: success, too, does not mean that the child is there (seen on GPUs).
        let state = self.asynchronous.front().copied().unwrap_or(self.forever);
        let later = MAKE_LATER.contains(&function) && [code, state].contains(&IN_PROGRESS);
        let handle = if later || no_color { ptr::null_mut() } else { self.make(name) };
        // SAFETY: the caller's place for a handle.
        unsafe { *slot = handle };
        if later && !no_color {
            self.late.push(slot);
        }
        if self.depth > 0 {
            self.pending.extend(Self::number(handle));
        }
    }
}

/// What the C functions return.
trait Answer {
    fn of(code: u32) -> Self;
}

impl Answer for ncclResult_t {
    fn of(code: u32) -> Self {
        Self(code)
    }
}

impl Answer for *const c_char {
    fn of(_: u32) -> Self {
        c"a text".as_ptr()
    }
}

impl Answer for () {
    fn of(_: u32) {}
}

macro_rules! recording_functions {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $returned:ty)?;)*) => {
        #[allow(non_snake_case, clippy::wildcard_imports)]
        mod functions {
            use super::*;
            use libnccl::sys::*;

            $(
                pub(super) unsafe extern "C" fn $name($($argument: $type),*) $(-> $returned)? {
                    Answer::of(call(stringify!($name), &[$(Argument::from($argument)),*]))
                }
            )*
        }

        /// The functions that a release has.
        fn table(release: u32) -> Functions {
            let since = |name| sys::since(name).unwrap_or_default() <= release;
            Functions { $($name: since(stringify!($name)).then_some(functions::$name)),* }
        }
    };
}
libnccl::for_each_function!(recording_functions);

/// Every release's answer to `ncclGetUniqueId` is one code, for a table of its own: the facade remembers which
/// function has failed.
pub(crate) fn nccl_without_ids<const CODE: u32>() -> Nccl {
    unsafe extern "C" fn fail<const CODE: u32>(_: *mut ncclUniqueId) -> ncclResult_t {
        call("ncclGetUniqueId", &[]);
        ncclResult_t(CODE)
    }
    let functions = Functions { ncclGetUniqueId: Some(fail::<CODE>), ..table(Version::HEADER.code()) };
    // SAFETY: as in `Recorder::nccl`.
    unsafe { Nccl::from_table("the recorder", functions) }.unwrap()
}
