//! Large batches in pieces: each has a deadline of its own, and those of different callers take turns.

use crate::store::Command;

/// The most keys that the commands of one piece touch. A command that touches more is a piece of its own.
pub const PIECE_KEYS_MAX: usize = 32;

/// How many keys the commands touch, counting those that several of them share each time.
pub(crate) fn keys(commands: &[Command<'_>]) -> usize {
    commands.iter().map(|command| command.keys().max(1)).sum()
}

/// How many commands, from the first on, are a piece by the number of their keys.
pub(crate) fn first_piece(commands: &[Command<'_>]) -> usize {
    let mut keys = 0;
    let fits = |command: &&Command<'_>| {
        keys += command.keys().max(1);
        keys <= PIECE_KEYS_MAX
    };
    commands.iter().take_while(fits).count().max(1)
}
