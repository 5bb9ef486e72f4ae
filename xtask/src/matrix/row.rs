use super::findings::Findings;

/// The result for a release.
#[derive(Debug, PartialEq)]
pub(super) struct Row {
    pub(super) release: String,
    /// The number of header items compared.
    pub(super) header_items: usize,
    /// The findings, on which all programs agree.
    pub(super) findings: Findings,
}
