//! Results of `nccl bench --json`, which are compared and drawn.

use serde_json::{Value, json};

use crate::snapshot::Session;

/// Returns a result of three sizes on two ranks, with changes.
pub(crate) fn result(changes: &str) -> Value {
    let mut result = serde_json::from_str(include_str!("result.json")).unwrap();
    change(&mut result, changes);
    result
}

/// Applies changes that are separated by blanks: `POINTER=JSON` sets a field, `POINTER-` removes it, `POINTER:OTHER` copies another one
/// to it, and `POINTER*FACTOR` multiplies all times of a measurement. `all` stands for each measurement.
pub(crate) fn change(result: &mut Value, changes: &str) {
    for change in changes.split_whitespace() {
        let (pointer, change) = change.split_at(change.find(['=', '-', ':', '*']).expect(change));
        match pointer.strip_prefix("all") {
            None => apply(result, pointer, change),
            Some(rest) => {
                for (row, place) in
                    (0..3).flat_map(|row| ["out_of_place", "in_place"].map(|place| (row, place)))
                {
                    apply(result, &format!("/rows/{row}/{place}{rest}"), change);
                }
            }
        }
    }
}

fn apply(result: &mut Value, pointer: &str, change: &str) {
    let (kind, rest) = change.split_at(1);
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    let value = match kind {
        "=" => serde_json::from_str(rest).unwrap(),
        ":" => result.pointer(rest).unwrap().clone(),
        "*" => {
            let mut measured = result.pointer(pointer).unwrap().clone();
            let multiply =
                |value: &mut Value| *value = json!(value.as_f64().unwrap() * rest.parse::<f64>().unwrap());
            multiply(&mut measured["time_us"]);
            for iterations in measured["iterations"].as_array_mut().unwrap() {
                for name in ["min_us", "median_us", "p99_us", "max_us"] {
                    multiply(&mut iterations[name]);
                }
            }
            measured
        }
        _ => Value::Null,
    };
    match (result.pointer_mut(parent).unwrap(), kind) {
        (Value::Array(values), "-") => drop(values.remove(name.parse().unwrap())),
        (Value::Object(fields), "-") => drop(fields.remove(name)),
        (Value::Array(values), _) => values[name.parse::<usize>().unwrap()] = value,
        (object, _) => object[name] = value,
    }
}

/// Runs a command of a snapshot, or writes a result: `FILE.json: CHANGES`.
pub(crate) fn command(session: &mut Session, line: &str) {
    match line.split_once(".json:") {
        Some((name, changes)) => {
            session.write(&format!("{name}.json"), result(changes).to_string());
            session.add(&format!("$ {line}"), "");
        }
        None => session.shell(line),
    }
}

/// `nccl bench plot`, and `nccl bench --plot`.
#[test]
fn results_are_drawn_labelled_or_refused() {
    Session::new().replay("plot_results", command);
}
