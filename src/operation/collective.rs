//! The collectives with one count: the call into C, and messages in its place for a library that lacks the function.
#![allow(unsafe_code)] // Calls C.

use super::c_function::CFunction;
use super::call::{Call, Checked};
use super::grouping::Start;
use super::vector;
use crate::{Extent, Operation, Result, ResultCode, Role};

/// Calls a function, or its form with options if there are any, with the communicator and the stream after the other arguments;
/// for use in an `unsafe` block.
macro_rules! call_configured {
    ($call:ident, $config:expr, $plain:ident or $configured:ident($($argument:expr),*)) => {{
        let (library, raw) = ($call.communicator.library(), $call.communicator.raw());
        let stream = $call.stream.as_raw();
        match $config.map($crate::config::RawCollectiveConfig::as_ptr) {
            None => $crate::backend::call!(library, $plain($($argument,)* raw, stream)),
            Some(config) => $crate::backend::call!(library, $configured($($argument,)* raw, stream, config)),
        }
    }};
}
pub(super) use call_configured;

/// Calls the function of a collective, or its form with options; NCCL has been entered.
///
/// The operation is passed on by itself, as it is a constant where the call is made.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(super) fn enqueue(
    operation: &Operation,
    function: CFunction,
    call: &Call<'_>,
    start: Start<'_>,
    checked: &Checked,
) -> Result<ResultCode> {
    let Checked { send, recv, count, ranks: [root, _] } = *checked;
    let (library, op) = (call.communicator.library(), call.arguments.operator.as_raw());
    let (from, to, data_type) = (send.as_raw(), recv.as_raw().cast_mut(), recv.data_type().as_raw());
    let (raw, stream) = (call.communicator.raw(), call.stream.as_raw());
    macro_rules! call_form {
        ($form:ident($($argument:ident),*)) => {{
            let plain = match (($form.plain)(&library.functions), messages_of(operation)) {
                (None, Some(messages)) => return send_messages(*call, *checked, messages),
                (plain, _) => library.function(operation.function, plain)?,
            };
            // SAFETY: the buffers that this rank uses hold as many elements as the row says, in the communicator's memory, as was
            // checked; the creator of the views guarantees that they live long enough. The communicator is live, as the caller
            // has entered NCCL.
            let plain = || unsafe { plain(from, to, count, data_type $(, $argument)*, raw, stream) };
            let Some(config) = call.config else { return library.check(operation.function, plain()) };
            let Some(config) = call.raw_config(start, config)? else {
                return library.check(operation.function, plain());
            };
            let name = operation.function_with_config.unwrap_or(operation.function);
            let with_config = library.function(name, ($form.with_config)(&library.functions))?;
            let config = config.as_ptr();
            // SAFETY: as above; the options live until the call has returned, or as long as the group.
            library.check(name, unsafe { with_config(from, to, count, data_type $(, $argument)*, raw, stream, config) })
        }};
    }
    match function {
        CFunction::Plain(form) => call_form!(form()),
        CFunction::Op(form) => call_form!(form(op)),
        CFunction::Root(form) => call_form!(form(root)),
        CFunction::OpAndRoot(form) => call_form!(form(op, root)),
    }
}

/// Messages that do the same as an operation.
type Messages = fn(&Call<'_>, &Checked) -> Result<ResultCode>;

/// Returns what does the same as an operation with messages, for a library that lacks its function; `None` if every release has
/// it.
#[cfg_attr(not(debug_assertions), inline(always))]
fn messages_of(operation: &Operation) -> Option<Messages> {
    match (operation.sends, operation.receives, operation.role) {
        (Extent::CountPerRank, Extent::CountPerRank, Role::All) => Some(vector::all_to_all),
        (Extent::Count, Extent::CountPerRank, Role::RootReceives) => Some(vector::gather),
        (Extent::CountPerRank, Extent::Count, Role::RootSends) => Some(vector::scatter),
        _ => None,
    }
}

/// Sends `messages` for a library that lacks the operation, and so its form with options.
#[cold]
fn send_messages(call: Call<'_>, checked: Checked, messages: Messages) -> Result<ResultCode> {
    if let (Some(config), Some(function)) = (call.config, call.operation.function_with_config)
        && !config.is_default()
    {
        call.communicator.library().function::<()>(function, None)?;
    }
    messages(&call, &checked)
}
