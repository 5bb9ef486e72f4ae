//! `nccl bench plot`, and `nccl bench --plot`.

use crate::results;
use crate::snapshot::Session;

#[test]
fn results_are_drawn_labelled_or_refused() {
    Session::new().replay("plot_results", results::command);
}
