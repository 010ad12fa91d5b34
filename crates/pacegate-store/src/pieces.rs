//! Splitting of large batches into pieces, each with its own deadline, so that callers can
//! alternate.

use crate::store::Command;

/// Maximum number of keys that the commands of one piece touch. A command that touches more is a
/// piece by itself.
pub const PIECE_KEYS_MAX: usize = 32;

/// The number of keys the commands touch; a shared key counts once per command.
pub(crate) fn keys(commands: &[Command<'_>]) -> usize {
    commands.iter().map(|command| command.keys().max(1)).sum()
}

/// The number of commands, from the first on, that form a piece.
pub(crate) fn first_piece(commands: &[Command<'_>]) -> usize {
    let mut keys = 0;
    let fits = |command: &&Command<'_>| {
        keys += command.keys().max(1);
        keys <= PIECE_KEYS_MAX
    };
    commands.iter().take_while(fits).count().max(1)
}
