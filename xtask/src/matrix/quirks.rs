/// A crash, a hang or an inconsistency of NCCL's, from which the facade protects its callers.
#[derive(Debug)]
pub(super) struct Quirk {
    /// The name in the program.
    pub(super) name: &'static str,
    /// The title in the table.
    pub(super) title: &'static str,
    pub(super) description: &'static str,
    /// The finding that shows the quirk, besides crashes and hangs.
    symptom: Option<&'static str>,
}

/// The quirks, in the order of the table.
pub(super) const QUIRKS: &[Quirk] = &[
    Quirk {
        name: "second-id",
        title: "second id",
        description: "after a failed `ncclGetUniqueId`, the next call never returns. The facade calls it once, and \
                      returns the same error from then on (*no network* above).",
        symptom: None,
    },
    Quirk {
        name: "garbage-slot",
        title: "garbage in `*comm`",
        description: "a failing `ncclCommInitRankConfig` dereferences the previous value of `*comm`. The facade \
                      initializes it with null.",
        symptom: None,
    },
    Quirk {
        name: "open-group",
        title: "group left open",
        description: "a failing `ncclCommInitRankConfig` leaves a group open: a `ncclGroupEnd` without \
                      `ncclGroupStart` succeeds. The facade closes the group (*no GPU* above).",
        symptom: Some("1, 0"),
    },
    Quirk {
        name: "null-split",
        title: "split of null",
        description: "`ncclCommSplit` of a null communicator. A `Communicator` is never null, here and below.",
        symptom: None,
    },
    Quirk {
        name: "null-shrink",
        title: "shrink of null",
        description: "`ncclCommShrink` of a null communicator.",
        symptom: None,
    },
    Quirk {
        name: "null-operator",
        title: "operator for null",
        description: "`ncclRedOpCreatePreMulSum` for a null communicator.",
        symptom: None,
    },
    Quirk {
        name: "null-operator-destroy",
        title: "operator of null destroyed",
        description: "`ncclRedOpDestroy` for a null communicator.",
        symptom: None,
    },
    Quirk {
        name: "zeroed-count",
        title: "size of zeros",
        description: "`ncclCommCount` of a communicator that is all zeros. A `Communicator` is always one that NCCL \
                      created and that is not destroyed.",
        symptom: Some("0"),
    },
    Quirk {
        name: "zeroed-destroy",
        title: "zeros destroyed",
        description: "`ncclCommDestroy` of a communicator that is all zeros.",
        symptom: Some("0"),
    },
];

impl Quirk {
    /// Returns whether a release has the quirk, according to what was found.
    pub(super) fn is_shown_by(&self, finding: &str) -> bool {
        finding.contains("SIG") || finding.contains("hangs") || self.symptom == Some(finding)
    }
}
