//! The planted fault of a rank that sends a wrong element.
#![allow(unsafe_code)]

use crate::coll::operation::Operation;
use crate::diag::error::Result;
use crate::shm::buffer::ReadBuf;
use crate::shm::call_context::CallContext;

/// The bit that is flipped in the highest byte of an element: of a float, the highest of the exponent, so that no
/// rounding hides it.
const BIT: u8 = 0x40;

/// Runs an operation with one bit flipped in the middle element of what its rank sends. The caller's buffer stays unchanged.
pub(crate) async fn run(operation: &impl Operation, context: CallContext<'_>) -> Result {
    let mut copy = vec![];
    let altered = operation.sending(context.rank, |send, element| {
        copy = vec![0; send.length()];
        send.read(0, &mut copy);
        flip(&mut copy, element);
        // SAFETY: the copy lives until the operation has ended, below, and nothing writes to it.
        unsafe { ReadBuf::new(copy.as_ptr(), copy.len()) }
    });
    match altered {
        Some(altered) => altered.run(context).await,
        None => operation.run(context).await,
    }
}

fn flip(bytes: &mut [u8], element: usize) {
    let middle = bytes.len() / element.max(1) / 2 * element;
    let highest = if cfg!(target_endian = "little") { middle + element - 1 } else { middle };
    if let Some(byte) = bytes.get_mut(highest) {
        *byte ^= BIT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flip_changes_the_middle_element_alone() {
        for (count, middle) in [(1, 0), (2, 1), (5, 2)] {
            let elements = vec![3_f32; count];
            let mut bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_ne_bytes()).collect();
            flip(&mut bytes, 4);
            let flipped = bytes.chunks_exact(4).map(|bytes| f32::from_ne_bytes(bytes.try_into().unwrap()));
            let differs: Vec<usize> =
                flipped.enumerate().filter(|(_, element)| *element != 3.0).map(|(index, _)| index).collect();
            assert_eq!(differs, [middle], "{count} elements");
        }
        flip(&mut [], 8);
    }
}
