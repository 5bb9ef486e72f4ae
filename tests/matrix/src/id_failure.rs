//! Failure to create an id: the environment's `NCCL_SOCKET_IFNAME` names no network interface.

use libnccl::{Error, Nccl};

use crate::outcome::{Found, Outcome, code, ensure, report};

pub(crate) fn run(nccl: &Nccl) {
    report("id failure", twice(nccl));
}

/// Requests an id twice: up to 2.21.5, NCCL hangs in the second call.
fn twice(nccl: &Nccl) -> Outcome {
    let mut answers = Vec::new();
    for _ in 0..2 {
        match nccl.unique_id() {
            Err(Error::Nccl { call: "ncclGetUniqueId", code, message, detail }) => {
                answers.push((code, message, detail));
            }
            other => return Err(format!("{other:?}, expected an error of NCCL's")),
        }
    }
    ensure(answers[0] == answers[1], || format!("{answers:?}, expected the same twice"))?;
    let (found, message, detail) = &answers[0];
    Ok(Found::new(format!("{}, twice", code(*found))).with(format!("{message}: {detail}")))
}
