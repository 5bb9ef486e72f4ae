//! The library: it does nothing, properly, but for one call.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libnccl::sys::{self, Functions, ncclComm_t, ncclResult_t, ncclUniqueId};
use libnccl::{LoadError, Nccl};

use crate::fault::{Fault, Outs, Progress, Text};
use crate::place::{IntoPlace, Place, is_read};

pub(crate) const SUCCESS: u32 = 0;
pub(crate) const INVALID_USAGE: u32 = 5;
pub(crate) const IN_PROGRESS: u32 = 7;

/// What a communicator says of itself.
const SIZE: i32 = 4;
const RANK: i32 = 2;
/// What windows want.
const PAGE: usize = 4096;
/// All handles that are no communicators.
const HANDLE: usize = 0x77;
const NOT_UTF8: &CStr = c"\xff\xfe broken \xc3";
const MEGABYTE: usize = 1 << 20;
/// A string of a megabyte.
static LONG: [u8; MEGABYTE + 1] = {
    let mut text = [b'x'; MEGABYTE + 1];
    text[MEGABYTE] = 0;
    text
};

thread_local! {
    static CURRENT: RefCell<Option<Library>> = const { RefCell::new(None) };
}

/// One run's library; clones share it.
#[derive(Clone)]
pub(crate) struct Library(Arc<Mutex<State>>);

struct State {
    fault: Option<Fault>,
    was_hit: bool,
    calls: Vec<&'static str>,
    /// How often a communicator was asked since the fault.
    asked: usize,
    /// Whether each communicator that was made is alive.
    comms: Vec<bool>,
    depth: u32,
    memory: BTreeMap<usize, Layout>,
    violations: Vec<String>,
    /// What the text that changes is.
    changing: Box<[u8; 8]>,
}

impl Library {
    pub(crate) fn new(fault: Option<Fault>) -> Self {
        let library = Self(Arc::new(Mutex::new(State {
            fault,
            was_hit: false,
            calls: Vec::new(),
            asked: 0,
            comms: Vec::new(),
            depth: 0,
            memory: BTreeMap::new(),
            violations: Vec::new(),
            changing: Box::new(*b"text 00\0"),
        })));
        library.attach();
        library
    }

    /// Makes the calls of the current thread go here.
    pub(crate) fn attach(&self) {
        CURRENT.set(Some(self.clone()));
    }

    pub(crate) fn nccl(&self) -> Result<Nccl, LoadError> {
        let fault = self.state().fault.clone();
        let absent = fault.as_ref().filter(|fault| fault.is_absent).map_or("", |fault| fault.function);
        let makes_no_id = fault.as_ref().is_some_and(|fault| fault.function == "ncclGetUniqueId");
        // SAFETY: the signatures are the header's, and nothing that is pointed to is read where it must not be.
        unsafe { Nccl::from_table("the faulty library", table(absent, makes_no_id)) }
    }

    pub(crate) fn calls(&self) -> Vec<&'static str> {
        self.state().calls.clone()
    }

    pub(crate) fn was_hit(&self) -> bool {
        self.state().was_hit
    }

    /// From now on all is well.
    pub(crate) fn repair(&self) {
        self.state().fault = None;
    }

    /// What the caller must not have done.
    pub(crate) fn violations(&self) -> Vec<String> {
        let state = self.state();
        let mut violations = state.violations.clone();
        if state.depth > 0 {
            violations.push(format!("the thread is in {} groups", state.depth));
        }
        violations
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for State {
    fn drop(&mut self) {
        for (address, layout) in std::mem::take(&mut self.memory) {
            // SAFETY: allocated with this layout, and not freed yet.
            unsafe { dealloc(ptr::with_exposed_provenance_mut(address), layout) };
        }
    }
}

/// Any call.
fn call(function: &'static str, places: &[Place]) -> u32 {
    let Some(library) = CURRENT.with_borrow(Clone::clone) else { return INVALID_USAGE };
    let mut state = library.state();
    let at = state.calls.iter().filter(|called| **called == function).count();
    state.calls.push(function);
    let fault = state.fault.clone().filter(|fault| fault.function == function && fault.at == at);
    state.was_hit |= fault.is_some();
    let (code, outs) = fault.map_or((SUCCESS, Outs::Proper), |fault| (fault.code, fault.outs));
    state.check_comm(function, places);
    match function {
        "ncclGroupStart" if [SUCCESS, IN_PROGRESS].contains(&code) => state.depth += 1,
        "ncclGroupEnd" | "ncclGroupSimulateEnd" => {
            if state.depth == 0 {
                return INVALID_USAGE;
            }
            state.depth -= 1;
        }
        "ncclMemFree" => state.free(places),
        _ => {}
    }
    let count = places.iter().find_map(|place| match place {
        Place::Number(number) => Some(usize::try_from(*number).unwrap_or_default()),
        _ => None,
    });
    for place in places {
        state.write(function, *place, outs, count.unwrap_or_default());
    }
    code
}

impl State {
    /// It is alive; if the call ends it, not any more.
    fn check_comm(&mut self, function: &str, places: &[Place]) {
        let comm = places.iter().find_map(|place| match place {
            Place::Comm(comm) => Some(comm.addr()),
            _ => None,
        });
        // Null, or from nowhere as a fault has it: not one of those that are numbers.
        let Some(alive) = comm.and_then(|comm| self.comms.get_mut((comm >> 8).wrapping_sub(1))) else {
            return;
        };
        if !*alive {
            self.violations.push(format!("{function} of a communicator that has ended"));
        }
        if ["ncclCommDestroy", "ncclCommAbort"].contains(&function) {
            *alive = false;
        }
    }

    fn make(&mut self) -> ncclComm_t {
        self.comms.push(true);
        ptr::without_provenance_mut(self.comms.len() << 8)
    }

    fn allocate(&mut self, bytes: usize) -> *mut c_void {
        let Ok(layout) = Layout::from_size_align(bytes.max(1), PAGE) else { return ptr::null_mut() };
        // SAFETY: not of size zero.
        let memory = unsafe { alloc_zeroed(layout) };
        self.memory.insert(memory.expose_provenance(), layout);
        memory.cast()
    }

    fn free(&mut self, places: &[Place]) {
        let [Place::Address(memory)] = places else { return };
        if let Some(layout) = self.memory.remove(&memory.addr()) {
            // SAFETY: allocated with this layout, and not freed yet.
            unsafe { dealloc(memory.cast(), layout) };
        }
    }

    fn write(&mut self, function: &str, place: Place, outs: Outs, count: usize) {
        // SAFETY: the caller's places, to be written with what their types say; a call may write less.
        unsafe {
            match place {
                Place::In | Place::Number(_) | Place::Comm(_) | Place::Address(_) => {}
                Place::Value(out, size) => self.write_value(function, out, size, outs),
                Place::NewComm(slots) => {
                    let places = if function == "ncclCommInitAll" { count } else { 1 };
                    for slot in (0..places).map(|index| slots.add(index)) {
                        match outs {
                            Outs::Proper | Outs::Huge => *slot = self.make(),
                            Outs::Nothing => {}
                            Outs::Zeros => *slot = ptr::null_mut(),
                            Outs::Ones => *slot = ptr::without_provenance_mut(usize::MAX),
                            Outs::Part => slot.cast::<u32>().write(u32::MAX),
                        }
                    }
                }
                Place::Handle(out) => match outs {
                    Outs::Proper | Outs::Huge if function == "ncclMemAlloc" => *out = self.allocate(count),
                    Outs::Proper | Outs::Huge => *out = ptr::without_provenance_mut(HANDLE),
                    Outs::Nothing => {}
                    Outs::Zeros => *out = ptr::null_mut(),
                    Outs::Ones => *out = ptr::without_provenance_mut(usize::MAX),
                    Outs::Part => out.cast::<u32>().write(u32::MAX),
                },
                Place::Text(out) => match outs {
                    Outs::Proper => *out = c"value".as_ptr(),
                    Outs::Nothing => {}
                    Outs::Zeros | Outs::Part => *out = ptr::null(),
                    Outs::Ones => *out = NOT_UTF8.as_ptr(),
                    Outs::Huge => *out = LONG.as_ptr().cast(),
                },
                // A number of strings that is larger than the array is beyond what anyone can notice.
                Place::Texts(out) if outs == Outs::Proper => *out = Box::leak(Box::new(keys())).as_mut_ptr(),
                Place::Texts(out) if outs != Outs::Nothing => *out = ptr::null_mut(),
                Place::Texts(_) => {}
            }
        }
    }

    /// # Safety
    /// `out` is a place of `size` bytes, for a value of any bits.
    unsafe fn write_value(&mut self, function: &str, out: *mut u8, size: usize, outs: Outs) {
        let bytes: Vec<u8> = match outs {
            Outs::Proper => match self.proper(function, size) {
                Some(bytes) => bytes,
                None => return,
            },
            Outs::Nothing => return,
            Outs::Zeros => vec![0; size],
            Outs::Ones => vec![0xff; size],
            Outs::Huge => [vec![0xff; size - 1], vec![0x7f]].concat(),
            Outs::Part => vec![0xa5; if size == size_of::<ncclUniqueId>() { 40 } else { size / 2 }],
        };
        // SAFETY: not more than `size`.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), out, bytes.len()) };
    }

    /// The bytes of a value as it should be.
    fn proper(&mut self, function: &str, size: usize) -> Option<Vec<u8>> {
        let number = match function {
            "ncclGetVersion" => {
                self.fault.as_ref().map_or(sys::NCCL_VERSION_CODE.cast_signed(), |fault| fault.version)
            }
            "ncclCommCount" => SIZE,
            "ncclCommUserRank" => RANK,
            "ncclCommGetAsyncError" => {
                let progress = self.fault.as_ref().filter(|_| self.was_hit).map(|fault| fault.progress);
                self.asked += usize::from(self.was_hit);
                progress.unwrap_or(Progress::Done).answer(self.asked.saturating_sub(1)).cast_signed()
            }
            "ncclRedOpCreatePreMulSum" => 5,
            "ncclGroupSimulateEnd" => return None,
            // As many as there are `keys`; for the rest, any number.
            _ => KEYS as i32,
        };
        let mut bytes = i64::from(number).to_ne_bytes().to_vec();
        bytes.resize(size.max(bytes.len()), 9);
        bytes.truncate(size);
        Some(bytes)
    }

    fn text(&mut self) -> *const c_char {
        match self.fault.as_ref().map_or(Text::Plain, |fault| fault.text) {
            Text::Plain => c"a text".as_ptr(),
            Text::Null => ptr::null(),
            Text::Empty => c"".as_ptr(),
            Text::NotUtf8 => NOT_UTF8.as_ptr(),
            Text::Megabyte => LONG.as_ptr().cast(),
            Text::Changing => {
                self.changing[6] = if self.changing[6] == b'9' { b'0' } else { self.changing[6] + 1 };
                self.changing.as_ptr().cast()
            }
        }
    }
}

const KEYS: usize = 3;

fn keys() -> [*const c_char; KEYS] {
    [c"KEY".as_ptr(), ptr::null(), NOT_UTF8.as_ptr()]
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
        CURRENT.with_borrow(|library| library.as_ref().map_or(ptr::null(), |library| library.state().text()))
    }
}

impl Answer for () {
    fn of(_: u32) {}
}

macro_rules! faulty_functions {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $returned:ty)?;)*) => {
        #[allow(non_snake_case, clippy::wildcard_imports)]
        mod functions {
            use super::*;
            use libnccl::sys::*;

            $(
                pub(super) unsafe extern "C" fn $name($($argument: $type),*) $(-> $returned)? {
                    let place = |name, place| if is_read(stringify!($name), name) { Place::In } else { place };
                    let places: &[Place] = &[$(place(stringify!($argument), $argument.place())),*];
                    let _ = &place;
                    Answer::of(call(stringify!($name), places))
                }
            )*
        }

        /// All functions but one.
        fn table(absent: &str, is_faulty: bool) -> Functions {
            let table = Functions {
                $($name: (stringify!($name) != absent).then_some(functions::$name)),*
            };
            Functions { ncclGetUniqueId: table.ncclGetUniqueId.map(|_| unique_id(is_faulty)), ..table }
        }
    };
}
libnccl::for_each_function!(faulty_functions);

type GetUniqueId = unsafe extern "C" fn(*mut ncclUniqueId) -> ncclResult_t;

/// Another function for each run in which it fails, as the facade remembers which one has failed; one for the rest.
fn unique_id(is_faulty: bool) -> GetUniqueId {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    unsafe extern "C" fn get<const N: usize>(id: *mut ncclUniqueId) -> ncclResult_t {
        // So that no two of them are merged into one.
        std::hint::black_box(N);
        ncclResult_t(call("ncclGetUniqueId", &[id.place()]))
    }
    macro_rules! row {
        ($row:literal: $($column:literal)*) => { [$(get::<{ 16 * $row + $column }> as GetUniqueId),*] };
    }
    macro_rules! rows {
        ($($row:literal)*) => { [$(row!($row: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)),*] };
    }
    const FUNCTIONS: [[GetUniqueId; 16]; 16] = rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    let number = if is_faulty { NEXT.fetch_add(1, Ordering::Relaxed) } else { 0 };
    FUNCTIONS.as_flattened()[number]
}
