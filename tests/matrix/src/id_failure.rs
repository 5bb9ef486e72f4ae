//! An id that cannot be made, because there is no network: the variable `NCCL_SOCKET_IFNAME` says so from outside.

use libnccl::{Error, Nccl};

use crate::{Found, Outcome, code, ensure, report};

pub(crate) fn run(nccl: &Nccl) {
    report("id failure", twice(nccl));
}

/// Up to 2.21.5, NCCL does not return from the second call.
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
