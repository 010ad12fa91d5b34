//! Guessed keys must not lock out valid ones, and a certificate names one kind of identity.
