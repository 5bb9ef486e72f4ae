//! Rows as comma-separated values.

use super::report::{Measured, Row};

/// The names of the columns.
pub(crate) const HEAD: &str = "bytes,count,data_type,op,root,\
    out_of_place_time_us,out_of_place_algbw,out_of_place_busbw,out_of_place_wrong,\
    in_place_time_us,in_place_algbw,in_place_busbw,in_place_wrong";

/// Returns the line of a row. What a row does not have is empty.
pub(crate) fn line(row: &Row) -> String {
    let text = |value: Option<String>| value.unwrap_or_default();
    let mut fields = vec![
        row.bytes.to_string(),
        row.count.to_string(),
        row.data_type.clone(),
        text(row.op.clone()),
        text(row.root.map(|root| root.to_string())),
    ];
    for measured in [&row.out_of_place, &row.in_place] {
        fields.extend(columns(measured.as_ref()));
    }
    fields.join(",")
}

fn columns(measured: Option<&Measured>) -> [String; 4] {
    measured.map_or_else(Default::default, |Measured { time_us, algbw, busbw, wrong, .. }| {
        let wrong = wrong.map_or_else(String::new, |wrong| wrong.to_string());
        [time_us.to_string(), algbw.to_string(), busbw.to_string(), wrong]
    })
}

#[cfg(test)]
mod tests {
    use super::{HEAD, line};
    use crate::bench::output::report::{Measured, Row};

    #[test]
    fn line_has_a_field_for_each_column() {
        let measured = Measured { time_us: 1.5, algbw: 2.0, busbw: 0.25, wrong: Some(0), iterations: vec![] };
        let row = Row {
            bytes: 8,
            count: 2,
            data_type: "float".into(),
            op: None,
            root: Some(1),
            out_of_place: Some(measured),
            in_place: None,
        };
        assert_eq!(line(&row), "8,2,float,,1,1.5,2,0.25,0,,,,");
        assert_eq!(line(&row).split(',').count(), HEAD.split(',').count());
    }
}
