//! Made-up identifiers must not fill the memory, the catalog or the log.
