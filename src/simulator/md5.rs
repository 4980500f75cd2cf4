//! MD5 (RFC 1321), with which SQS lets clients check what it stored; some AWS clients insist.
//!
//! Not for security. Must not know SQS.

use super::canonical::hex;

const BLOCK: usize = 64;
/// RFC 1321, section 3.4: how far each round's four steps rotate.
const ROTATIONS: [[u32; 4]; 4] =
    [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];

/// The digest in lower-case hexadecimal.
pub(super) fn md5_hex(bytes: &[u8]) -> String {
    let mut state: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
    let sines = sines();
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    for block in blocks {
        absorb(&mut state, block, &sines);
    }
    // The padding: one bit, zeros, and the length in bits in the last eight bytes.
    let mut tail = [0_u8; 2 * BLOCK];
    tail[..rest.len()].copy_from_slice(rest);
    tail[rest.len()] = 0x80;
    let used = if rest.len() + 9 <= BLOCK { BLOCK } else { 2 * BLOCK };
    let bits = (bytes.len() as u64).wrapping_mul(8);
    tail[used - 8..used].copy_from_slice(&bits.to_le_bytes());
    for block in tail[..used].as_chunks::<BLOCK>().0 {
        absorb(&mut state, block, &sines);
    }
    let digest: Vec<u8> = state.iter().flat_map(|word| word.to_le_bytes()).collect();
    hex(&digest)
}

/// RFC 1321, section 3.4: the whole part of 2^32 times the sine of 1 to 64.
fn sines() -> [u32; 64] {
    std::array::from_fn(|i| {
        let radians = f64::from(u32::try_from(i + 1).expect("64 fits"));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "cut on purpose"
        )]
        let whole = (radians.sin().abs() * 4_294_967_296.0) as u32;
        whole
    })
}

fn absorb(state: &mut [u32; 4], block: &[u8; BLOCK], sines: &[u32; 64]) {
    let words: [u32; 16] = std::array::from_fn(|i| {
        let bytes = [block[4 * i], block[4 * i + 1], block[4 * i + 2], block[4 * i + 3]];
        u32::from_le_bytes(bytes)
    });
    let [mut a, mut b, mut c, mut d] = *state;
    for step in 0..64 {
        let (mixed, word) = match step / 16 {
            0 => ((b & c) | (!b & d), step),
            1 => ((d & b) | (!d & c), (5 * step + 1) % 16),
            2 => (b ^ c ^ d, (3 * step + 5) % 16),
            _ => (c ^ (b | !d), (7 * step) % 16),
        };
        let sum = a.wrapping_add(mixed).wrapping_add(sines[step]).wrapping_add(words[word]);
        let turned = b.wrapping_add(sum.rotate_left(ROTATIONS[step / 16][step % 4]));
        (a, b, c, d) = (d, turned, b, c);
    }
    for (word, add) in state.iter_mut().zip([a, b, c, d]) {
        *word = word.wrapping_add(add);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rfcs_vectors_come_out() {
        // RFC 1321, appendix A.5.
        for (text, expected) in [
            ("", "d41d8cd98f00b204e9800998ecf8427e"),
            ("abc", "900150983cd24fb0d6963f7d28e17f72"),
            ("message digest", "f96b697d7cb7938d525a2f31aaf161d0"),
            (
                "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
                "d174ab98d277d9f5a5611c2c9f419d9f",
            ),
            (
                "12345678901234567890123456789012345678901234567890123456789012345678901234567890",
                "57edf4a22be3c955ac49da2e2107b67a",
            ),
        ] {
            assert_eq!(md5_hex(text.as_bytes()), expected, "{text}");
        }
    }
}
