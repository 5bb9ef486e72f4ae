//! The model of NCCL: communicators, groups, operators and memory, as far as a caller can see them.
#![allow(unsafe_code)]

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ThreadId};
use std::time::Duration;

use libnccl::sys::{self, ncclComm_t, ncclRedOp_t, ncclSimInfo_t, ncclUniqueId, ncclWindow_t};

use super::arguments::{Argument, call_text, string};
use super::dispatch::{comm_name, handle, number};
use super::memory::Memory;
use super::rule::{ErrorText, IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, Output, Rule, SUCCESS};

/// The size, rank and device that communicators report.
const SIZE: c_int = 4;
const RANK: c_int = 2;
const DEVICE: i32 = 1;

/// The address of every handle of a registration.
pub const REGISTRATION: usize = 0x1230;
/// The address of every handle of a window.
pub const WINDOW: usize = 0x4560;
/// The address of every handle of a parameter.
const PARAMETER: usize = 0x77;
/// The address that `ncclWinGetUserPtr` writes.
pub const USER_POINTER: usize = 0x1000;

const NOT_UTF8: &CStr = c"\xff\xfe broken \xc3";

const CREATE_CHILDREN: [&str; 2] = ["ncclCommSplit", "ncclCommShrink"];

/// The behavior that a test can set.
#[derive(Debug)]
pub struct Behavior {
    /// The code that `ncclGetVersion` writes.
    pub version: c_int,
    /// The size and the rank that communicators report.
    pub size_and_rank: (c_int, c_int),
    /// If set, the library reports that it works on the host's memory.
    pub has_host_memory: bool,
    /// If set, the next allocation ends that, as CUDA does when another thread loads it.
    pub ends_host_memory: bool,
    /// If set, registrations and windows get a handle; otherwise they succeed with null.
    pub registers: bool,
    /// If set, a failed initialization leaves a group open, as in 2.23.4 to 2.32.3.
    pub leaves_group_open: bool,
    /// The number of bytes of every parameter.
    pub parameter_bytes: usize,
    /// The text that `ncclGetErrorString` and `ncclGetLastError` return.
    pub error_text: ErrorText,
    /// The start of the names of slow functions, and how long they take.
    pub delay: (&'static str, Duration),
}

impl Default for Behavior {
    fn default() -> Self {
        Self {
            version: sys::NCCL_VERSION_CODE.cast_signed(),
            size_and_rank: (SIZE, RANK),
            has_host_memory: false,
            ends_host_memory: false,
            registers: true,
            leaves_group_open: false,
            parameter_bytes: 3,
            error_text: ErrorText::PLAIN,
            delay: ("", Duration::ZERO),
        }
    }
}

#[derive(Default)]
pub(super) struct State {
    /// The number of this fake.
    pub(super) fake: usize,
    pub(super) behavior: Behavior,
    /// Functions that the library lacks.
    pub(super) absent: BTreeSet<&'static str>,
    pub(super) rules: Vec<Rule>,
    pub(super) has_deviated: bool,
    /// Set when a rule has written handles that may be dangling.
    has_forged: bool,

    pub(super) calls: Vec<&'static str>,
    pub(super) log: Vec<String>,
    /// Operations that were started: immediately, or by the end of a group.
    pub(super) started: Vec<String>,
    pub(super) violations: Vec<String>,

    /// The states that `ncclCommGetAsyncError` reports, and the one that it reports after them.
    pub(super) async_states: VecDeque<u32>,
    pub(super) last_async_state: u32,
    /// Set while a thread is in a parameter function. NCCL crashes if another one enters one too.
    pub(super) is_in_parameters: bool,
    /// The text that [`ErrorText::Changing`] changes.
    changing_text: Box<[u8; 8]>,
    keys: Box<[*const c_char; 3]>,

    pub(super) comms: Vec<Comm>,
    groups: HashMap<ThreadId, Group>,
    /// The places for children that are created once their parent is no longer in progress.
    pub(super) pending_children: Vec<*mut ncclComm_t>,
    /// The places for the windows of communicators in progress.
    pending_windows: Vec<*mut *mut c_void>,
    /// The places that are written a second time, once their communicator is complete.
    rewritten: Vec<(ncclComm_t, *mut ncclComm_t)>,
    /// The children that exist, and are complete once their parent is no longer in progress.
    growing: Vec<usize>,
    pub(super) operators: Vec<(ncclRedOp_t, ncclComm_t)>,
    operators_created: u32,
    /// The calls in a group or in progress whose options or signals NCCL may read again, with their text.
    in_use: Vec<(&'static str, Vec<Argument>, String)>,

    pub(super) memory: Memory,
}

/// The groups that a thread has open.
#[derive(Default)]
struct Group {
    depth: u32,
    error: u32,
    queued: Vec<String>,
    /// The communicators that the group creates.
    comms: Vec<usize>,
    /// The places for the windows that the group registers.
    windows: Vec<*mut ncclWindow_t>,
    /// The communicators that the group destroys.
    ends: Vec<ncclComm_t>,
}

#[derive(Default)]
pub(super) struct Comm {
    pub(super) is_alive: bool,
    is_busy: bool,
    /// Set for one that is not complete, and that its parent may point to.
    is_incomplete: bool,
    ends: u32,
    /// Set while a graph contains its work.
    pub(super) has_graph: bool,
    /// The name in the options, to which NCCL keeps the pointer, and its text at the time.
    name: Option<(*const c_char, String)>,
}

// SAFETY: its pointers are the tests' own, which outlive it, and are used by one thread at a time.
unsafe impl Send for State {}

fn is_success(code: u32) -> bool {
    code == SUCCESS || code == IN_PROGRESS
}

/// Returns the places for the communicators that a call creates.
fn slots_of(
    function: &str,
    arguments: &[Argument],
    slots: *mut ncclComm_t,
) -> impl Iterator<Item = *mut ncclComm_t> + use<> {
    let count = if function == "ncclCommInitAll" { Argument::length(arguments) } else { 1 };
    (0..count).map(move |index| slots.wrapping_add(index))
}

fn has_no_color(function: &str, arguments: &[Argument]) -> bool {
    matches!(arguments, [_, Argument::Number(-1), ..]) && function == "ncclCommSplit"
}

/// Writes a handle.
///
/// # Safety
/// `place` is one for a handle.
unsafe fn put<T>(place: *mut *mut T, output: Output, correct: impl FnOnce() -> *mut T) {
    let value = match output {
        Output::Correct => correct(),
        Output::Nothing => return,
        Output::Zeros => ptr::null_mut(),
        Output::Ones => ptr::without_provenance_mut(usize::MAX),
    };
    // SAFETY: the caller guarantees it.
    unsafe { *place = value };
}

impl State {
    pub(super) fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        Self {
            fake: NEXT.fetch_add(1, Ordering::Relaxed),
            changing_text: Box::new(*b"text 00\0"),
            keys: Box::new([c"KEY".as_ptr(), ptr::null(), NOT_UTF8.as_ptr()]),
            ..Self::default()
        }
    }

    /// Returns the violations so far, with the groups that are open.
    pub(super) fn all_violations(&self) -> Vec<String> {
        let mut violations = self.violations.clone();
        let open = self.groups.values().filter(|group| group.depth > 0);
        violations.extend(open.map(|group| format!("a thread is in {} groups", group.depth)));
        violations
    }

    /// Returns the asynchronous state that the next query will report.
    fn async_state(&self) -> u32 {
        self.async_states.front().copied().unwrap_or(self.last_async_state)
    }

    fn group(&mut self) -> &mut Group {
        self.groups.entry(thread::current().id()).or_default()
    }

    /// Returns whether a call that destroys communicators has to wait for a graph.
    pub(super) fn waits(&mut self, function: &str, raw: Option<ncclComm_t>) -> bool {
        let ends = match (function, self.group().depth, raw) {
            ("ncclCommAbort" | "ncclCommDestroy", 0, Some(raw)) => vec![raw],
            ("ncclGroupEnd", 1, _) => self.group().ends.clone(),
            _ => return false,
        };
        ends.into_iter().any(|raw| self.comm(raw).is_some_and(|comm| comm.has_graph))
    }

    /// Returns the live objects.
    pub(super) fn leaks(&self) -> Vec<String> {
        let alive = self.comms.iter().enumerate().filter(|(_, comm)| comm.is_alive && !comm.is_incomplete);
        let comms = alive.map(|(number, _)| format!("comm{number} is never ended"));
        let operators = self.operators.iter().map(|(op, _)| format!("op{} is never destroyed", op.0));
        comms.chain(operators).collect()
    }

    /// Checks a call's communicator: it is alive, in no other call, and its name is still where it was.
    pub(super) fn enter(&mut self, function: &str, raw: ncclComm_t) {
        let Some(comm) = self.live(function, raw) else { return };
        let overlaps = std::mem::replace(&mut comm.is_busy, true);
        let is_renamed = comm.name.as_ref().is_some_and(|(pointer, text)| string(*pointer) != *text);
        if overlaps {
            self.violations.push(format!("{function} of a communicator that is in another call"));
        }
        if is_renamed {
            self.violations.push(format!("{function} of a communicator whose name is freed"));
        }
    }

    pub(super) fn leave(&mut self, raw: ncclComm_t) {
        if let Some(comm) = self.comm(raw) {
            comm.is_busy = false;
        }
    }

    pub(super) fn comm(&mut self, raw: ncclComm_t) -> Option<&mut Comm> {
        number(raw).and_then(|number| self.comms.get_mut(number))
    }

    /// Returns the live communicator of a call; records a violation if there is none.
    fn live(&mut self, function: &str, raw: ncclComm_t) -> Option<&mut Comm> {
        let known = number(raw).and_then(|number| self.comms.get(number));
        let problem = match known {
            Some(comm) if comm.is_alive => return self.comm(raw),
            Some(comm) => format!("has ended {} times", comm.ends),
            // A null communicator is an error in NCCL, with which the facade cancels groups.
            None if raw.is_null() && ["ncclAllReduce", "ncclCommGrow"].contains(&function) => return None,
            None if self.has_forged => return None,
            None => "is not a communicator".into(),
        };
        self.violations.push(format!("{function} of {}, which {problem}", comm_name(raw)));
        None
    }

    fn create(&mut self, name: Option<(*const c_char, String)>) -> ncclComm_t {
        self.comms.push(Comm { is_alive: true, name, ..Comm::default() });
        handle(self.fake, self.comms.len() - 1)
    }

    fn complete_children(&mut self) {
        for number in std::mem::take(&mut self.growing) {
            self.comms[number].is_incomplete = false;
        }
        for slot in std::mem::take(&mut self.pending_children) {
            // SAFETY: the caller keeps the slot until NCCL is done.
            unsafe { *slot = self.create(None) };
        }
    }

    fn end(&mut self, raw: ncclComm_t) {
        if self.behavior.has_host_memory {
            // Its call ends, and may have created a child before.
            self.complete_children();
        }
        let Some(comm) = self.comm(raw) else { return };
        comm.is_alive = false;
        comm.ends += 1;
        if comm.is_incomplete {
            self.violations.push(format!("{} is ended although it was never complete", comm_name(raw)));
        }
        self.operators.retain(|(_, comm)| *comm != raw);
    }

    /// Destroys the communicator of a call, as NCCL does.
    fn end_by(&mut self, function: &str, raw: ncclComm_t, (code, state): (u32, u32)) -> u32 {
        if function == "ncclCommDestroy" && state != SUCCESS {
            // It returns inside its own group, and has freed nothing.
            self.group().depth += 1;
            return if state == IN_PROGRESS { INVALID_ARGUMENT } else { state };
        }
        let group = self.group();
        if group.depth > 0 {
            group.ends.push(raw);
        } else {
            self.end(raw);
        }
        code
    }

    /// Applies the rules, and returns the code of a call, and its output if a rule sets one.
    pub(super) fn apply_rules(&mut self, function: &str) -> (u32, Option<Output>) {
        let (mut code, mut output) = (SUCCESS, None);
        for rule in self.rules.iter_mut().filter(|rule| rule.function == function) {
            if rule.applies() {
                (code, output) = (rule.code, rule.output);
                self.has_deviated = true;
                if rule.never_ends {
                    (self.async_states, self.last_async_state) = ([].into(), IN_PROGRESS);
                }
            }
        }
        self.has_forged |= output.is_some_and(|output| output != Output::Correct);
        (code, output)
    }

    /// Simulates a call of NCCL, and returns its code.
    pub(super) fn play(&mut self, function: &'static str, arguments: &[Argument]) -> u32 {
        let state = self.async_state();
        let (mut code, output) = self.apply_rules(function);
        match (function, arguments) {
            ("ncclGroupStart", _) if is_success(code) => self.group().depth += 1,
            ("ncclGroupEnd" | "ncclGroupSimulateEnd", _) if self.group().depth == 0 => return INVALID_USAGE,
            ("ncclGroupEnd" | "ncclGroupSimulateEnd", _) => code = self.end_group(function, code),
            // These destroy their object with any result code.
            ("ncclCommDestroy" | "ncclCommAbort", &[Argument::Comm(raw)]) => {
                code = self.end_by(function, raw, (code, state));
            }
            ("ncclMemFree", &[Argument::Address(address)]) => self.memory.free(address),
            ("ncclGroupStart", _) => {}
            _ if is_success(code) => code = self.perform(function, arguments, code),
            _ => self.fail(function, code),
        }
        if CREATE_CHILDREN.contains(&function) && !is_success(code) && output.is_none() {
            self.write_failed_child(arguments);
        }
        if output.is_some() || is_success(code) {
            self.write_outputs(function, arguments, output, code);
        }
        code
    }

    /// Records a failure of a function other than the group functions.
    fn fail(&mut self, function: &str, code: u32) {
        let group = self.group();
        if group.depth > 0 {
            group.error = code;
        }
        if self.behavior.leaves_group_open
            && (function.starts_with("ncclCommInit") || function == "ncclCommGrow")
        {
            self.group().depth += 1;
        }
    }

    /// Writes the child that NCCL could not complete.
    fn write_failed_child(&mut self, arguments: &[Argument]) {
        for argument in arguments {
            if let Argument::CommOut(slot) = *argument {
                let raw = self.create(None);
                self.comm(raw).expect("just created").is_incomplete = true;
                // SAFETY: the caller's slot.
                unsafe { *slot = raw };
            }
        }
    }

    /// Applies the effects of a call except its output, and returns its code.
    fn perform(&mut self, function: &'static str, arguments: &[Argument], code: u32) -> u32 {
        let has_null_comm = matches!(arguments, [.., Argument::Comm(raw), _] if raw.is_null());
        if function == "ncclAllReduce" && has_null_comm {
            self.fail(function, INVALID_ARGUMENT);
            return INVALID_ARGUMENT;
        }
        if function == "ncclCommGetAsyncError" {
            self.check_in_use();
        }
        self.keep_in_use(function, arguments, code);
        match (function, arguments) {
            ("ncclRedOpDestroy", &[Argument::Op(op), Argument::Comm(raw)]) => self.destroy_operator(op, raw),
            ("ncclRedOpCreatePreMulSum", _) => {}
            ("ncclParamGet", &[_, Argument::Address(out), Argument::Number(capacity), _]) => {
                if capacity < self.behavior.parameter_bytes as i64 {
                    return INVALID_ARGUMENT;
                }
                // SAFETY: the caller's buffer of `capacity` bytes.
                unsafe { out.cast::<u8>().write_bytes(0xa5, self.behavior.parameter_bytes) };
            }
            _ if arguments.iter().any(|argument| matches!(argument, Argument::Type(_))) => {
                let text = call_text(function, arguments, &self.memory);
                let group = self.group();
                if group.depth > 0 { group.queued.push(text) } else { self.started.push(text) }
            }
            _ => {}
        }
        code
    }

    fn destroy_operator(&mut self, op: ncclRedOp_t, raw: ncclComm_t) {
        let before = self.operators.len();
        self.operators.retain(|operator| *operator != (op, raw));
        if self.operators.len() == before && !self.has_forged {
            self.violations.push(format!("op{} of {} is no operator", op.0, comm_name(raw)));
        }
    }

    /// Keeps a call whose options or signals NCCL may read again, while it is in progress or until its group ends.
    fn keep_in_use(&mut self, function: &'static str, arguments: &[Argument], code: u32) {
        let (is_grouped, is_pending) = (self.group().depth > 0, code == IN_PROGRESS);
        let is_read_again = |argument: &Argument| match argument {
            Argument::CollConfig(_) => is_grouped || is_pending,
            Argument::Signals(_) => is_grouped,
            _ => false,
        };
        if arguments.iter().any(is_read_again) {
            let text = call_text(function, arguments, &self.memory);
            self.in_use.push((function, arguments.to_vec(), text));
        }
    }

    /// Reads the options and signals that are in use again.
    fn check_in_use(&mut self) {
        // Reuses their memory if it was freed.
        let _configs: Vec<Box<[usize; 11]>> = (0..64).map(|_| Box::new([7; 11])).collect();
        let _signals: Vec<Box<[usize; 2]>> = (0..64).map(|_| Box::new([7; 2])).collect();
        let _larger: Vec<Box<[usize; 4]>> = (0..64).map(|_| Box::new([7; 4])).collect();
        for (function, arguments, text) in std::mem::take(&mut self.in_use) {
            if call_text(function, &arguments, &self.memory) != text {
                self.violations.push(format!("{function} in progress has lost its options or signals"));
            }
        }
    }

    /// Closes a group, and returns its code: the code of the first failed member, if any.
    fn end_group(&mut self, function: &str, mut code: u32) -> u32 {
        let group = self.group();
        group.depth -= 1;
        if group.depth > 0 {
            return code;
        }
        let Group { error, queued, comms, windows, ends, .. } = std::mem::take(group);
        self.check_in_use();
        if error != SUCCESS {
            code = error;
        }
        let window = if is_success(code) { self.window() } else { ptr::null_mut() };
        for slot in windows {
            // SAFETY: the caller keeps the slot until the group ends.
            unsafe { *slot = window.cast() };
        }
        if !is_success(code) {
            // NCCL keeps incomplete communicators, and drops the queued teardowns.
            comms.into_iter().for_each(|number| self.comms[number].is_incomplete = true);
        } else if function == "ncclGroupEnd" || code == IN_PROGRESS {
            // Of nonblocking communicators, a simulation starts everything.
            self.started.extend(queued);
            ends.into_iter().for_each(|raw| self.end(raw));
        }
        code
    }

    fn window(&self) -> *mut c_void {
        ptr::without_provenance_mut(if self.behavior.registers { WINDOW } else { 0 })
    }

    /// Writes the outputs of a call: those of a rule, immediately, or what NCCL writes, perhaps later.
    fn write_outputs(&mut self, function: &str, arguments: &[Argument], rule: Option<Output>, code: u32) {
        let output = rule.unwrap_or(Output::Correct);
        let is_window = rule.is_none() && function == "ncclCommWindowRegister";
        for argument in arguments {
            // SAFETY: the caller's places, for what their types say; a call may write less.
            unsafe {
                match *argument {
                    Argument::CommOut(slots) if rule.is_none() => {
                        self.write_comms(function, arguments, slots, code);
                    }
                    Argument::CommOut(slots) => {
                        for slot in slots_of(function, arguments, slots) {
                            let is_null = has_no_color(function, arguments);
                            put(slot, output, || if is_null { ptr::null_mut() } else { self.create(None) });
                        }
                    }
                    Argument::HandleOut(slot) if is_window && self.group().depth > 0 => {
                        self.group().windows.push(slot.cast());
                    }
                    Argument::HandleOut(slot)
                        if is_window && [code, self.async_state()].contains(&IN_PROGRESS) =>
                    {
                        self.pending_windows.push(slot);
                    }
                    Argument::HandleOut(slot) => put(slot, output, || self.new_handle(function, arguments)),
                    Argument::ValueOut(out, size) => self.write_value(function, arguments, out, size, output),
                    Argument::TextOut(out) => match output {
                        Output::Correct => *out = self.parameter_text(arguments),
                        Output::Nothing => {}
                        Output::Zeros => *out = ptr::null(),
                        Output::Ones => *out = NOT_UTF8.as_ptr(),
                    },
                    Argument::TextsOut(out) => match output {
                        Output::Correct => *out = self.keys.as_mut_ptr(),
                        Output::Nothing => {}
                        // A length beyond the array's is more than any caller can notice.
                        _ => *out = ptr::null_mut(),
                    },
                    _ => {}
                }
            }
        }
    }

    fn new_handle(&mut self, function: &str, arguments: &[Argument]) -> *mut c_void {
        match function {
            "ncclMemAlloc" => {
                self.behavior.has_host_memory &= !self.behavior.ends_host_memory;
                self.memory.allocate(Argument::length(arguments))
            }
            "ncclCommRegister" if self.behavior.registers => ptr::without_provenance_mut(REGISTRATION),
            "ncclCommRegister" => ptr::null_mut(),
            "ncclCommWindowRegister" => self.window(),
            "ncclWinGetUserPtr" => ptr::without_provenance_mut(USER_POINTER),
            _ => ptr::without_provenance_mut(PARAMETER),
        }
    }

    fn write_comms(&mut self, function: &str, arguments: &[Argument], slots: *mut ncclComm_t, code: u32) {
        let has_no_color = has_no_color(function, arguments);
        let name = arguments.iter().find_map(|argument| match argument {
            // SAFETY: null or the caller's struct.
            Argument::Config(config) => unsafe { config.as_ref() }.map(|config| config.commName),
            _ => None,
        });
        let name = name.filter(|name| !name.is_null()).map(|name| (name, string(name)));
        // For any result code: even after a success, the child may not exist yet (seen on GPUs).
        let is_pending =
            CREATE_CHILDREN.contains(&function) && [code, self.async_state()].contains(&IN_PROGRESS);
        let is_growing = matches!(arguments, &[Argument::Comm(parent), ..] if !parent.is_null())
            && function == "ncclCommGrow"
            && [code, self.async_state()].contains(&IN_PROGRESS);
        for slot in slots_of(function, arguments, slots) {
            let is_null = is_pending || has_no_color;
            let raw = if is_null { ptr::null_mut() } else { self.create(name.clone()) };
            // SAFETY: the caller's slot.
            unsafe { *slot = raw };
            if function == "ncclCommGrow" {
                self.rewritten.push((raw, slot));
            }
            if let (true, Some(number)) = (is_growing, number(raw)) {
                self.comms[number].is_incomplete = true;
                self.growing.push(number);
            }
            if is_pending && !has_no_color {
                self.pending_children.push(slot);
            }
            let group = self.group();
            if group.depth > 0 {
                group.comms.extend(number(raw));
            }
        }
    }

    /// # Safety
    /// `out` is a place of `size` bytes, for a value of any bits.
    unsafe fn write_value(
        &mut self,
        function: &str,
        arguments: &[Argument],
        out: *mut u8,
        size: usize,
        output: Output,
    ) {
        let bytes: Vec<u8> = match output {
            Output::Correct if function == "ncclGroupSimulateEnd" => {
                // SAFETY: the caller's struct.
                unsafe { (*out.cast::<ncclSimInfo_t>()).estimatedTime = 12.5 };
                return;
            }
            Output::Correct if size == size_of::<ncclUniqueId>() => vec![9; size],
            Output::Correct => {
                let mut bytes = self.correct_number(function, arguments).to_ne_bytes().to_vec();
                bytes.truncate(size);
                bytes
            }
            Output::Nothing => return,
            Output::Zeros => vec![0; size],
            Output::Ones => vec![0xff; size],
        };
        // SAFETY: there are at most `size` bytes.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), out, bytes.len()) };
    }

    /// Returns the number that a call writes.
    fn correct_number(&mut self, function: &str, arguments: &[Argument]) -> i64 {
        match function {
            "ncclGetVersion" => self.behavior.version.into(),
            "ncclCommCount" => self.behavior.size_and_rank.0.into(),
            "ncclCommUserRank" => self.behavior.size_and_rank.1.into(),
            "ncclCommCuDevice" => DEVICE.into(),
            "ncclCommMemStats" => 4096,
            "ncclCommGetAsyncError" => {
                let state = self.async_state();
                self.async_states.pop_front();
                if state == SUCCESS {
                    self.write_second_time(Argument::comm(arguments));
                    for slot in std::mem::take(&mut self.pending_windows) {
                        // SAFETY: the caller keeps the slot until NCCL is done.
                        unsafe { *slot = self.window() };
                    }
                    self.complete_children();
                }
                state.into()
            }
            "ncclRedOpCreatePreMulSum" => {
                let op = ncclRedOp_t::ncclNumOps.0 + self.operators_created;
                self.operators_created += 1;
                let comm = Argument::comm(arguments).unwrap_or(ptr::null_mut());
                self.operators.push((ncclRedOp_t(op), comm));
                op.into()
            }
            "ncclParamGet" => self.behavior.parameter_bytes as i64,
            "ncclParamGetParameter" => 5,
            "ncclParamGetAllParameterKeys" => self.keys.len() as i64,
            // Every parameter of a numeric type.
            _ => 7,
        }
    }

    /// Writes the handle of a communicator that is complete to its place again, as `ncclCommGrow` does.
    fn write_second_time(&mut self, complete: Option<ncclComm_t>) {
        for (raw, slot) in std::mem::take(&mut self.rewritten) {
            if Some(raw) != complete {
                self.rewritten.push((raw, slot));
                continue;
            }
            // A library that has reported a wrong state may not have reported completion.
            if self.has_deviated {
                continue;
            }
            // SAFETY: the caller keeps the slot until NCCL is done, which is what is tested.
            if unsafe { slot.read_volatile() } != raw {
                self.violations.push(format!("the place of {} is freed", comm_name(raw)));
            }
        }
    }

    fn parameter_text(&self, arguments: &[Argument]) -> *const c_char {
        let is_memory_space = arguments.iter().any(|argument| match argument {
            Argument::Text(key) => string(*key) == "\"LIBNCCL_MEMORY_SPACE\"",
            _ => false,
        });
        if is_memory_space && self.behavior.has_host_memory { c"host".as_ptr() } else { c"value".as_ptr() }
    }

    pub(super) fn next_error_text(&mut self) -> *const c_char {
        match self.behavior.error_text {
            ErrorText::Of(text) => text.as_ptr(),
            ErrorText::Null => ptr::null(),
            ErrorText::Changing => {
                let digit = &mut self.changing_text[6];
                *digit = if *digit == b'9' { b'0' } else { *digit + 1 };
                self.changing_text.as_ptr().cast()
            }
        }
    }
}
