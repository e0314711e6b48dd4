//! Calls about access to a shard: roles, passwords, and the servers through which shards reach each other.

calls! {
    /// Gives the service role a new password, as a SCRAM-SHA-256 verifier.
    set_service_password => SetServicePassword<'a> { verifier: &'a str } -> ();

    /// Creates an application role.
    create_role => CreateRole<'a> { role: &'a str } -> ();

    /// Drops an application role.
    drop_role => DropRole<'a> { role: &'a str } -> ();

    /// Sets what roles may do with a collection's table: read it, write it, or nothing.
    set_access => SetAccess<'a> { collection: i32, readers: &'a [&'a str], writers: &'a [&'a str], others: &'a [&'a str] } -> ();

    /// The verifier of the password with which the shard logs in at others.
    puller_verifier => PullerVerifier {} -> String;

    /// Creates the server that leads to another shard.
    connect_shard => ConnectShard<'a> {
        server: &'a str,
        /// the names of the server's options, and as many values
        options: &'a [&'a str],
        settings: &'a [&'a str],
        puller: &'a str,
    } -> ();

    /// Gives the server that leads to another shard another address.
    set_server_address => SetServerAddress<'a> { server: &'a str, options: &'a [&'a str], settings: &'a [&'a str] } -> ();

    /// Lets another shard log in, to pull the documents that move to it.
    accept_puller => AcceptPuller<'a> { puller: &'a str, verifier: &'a str } -> ();

    /// Removes the access of another shard and the server that leads to it.
    disconnect_shard => DisconnectShard<'a> { server: &'a str, puller: &'a str } -> ();

    /// Removes the node's identity as a shard of its router, and the access of other shards. The documents stay.
    leave_cluster => LeaveCluster {} -> ();

    /// Like [`LeaveCluster`], and drops all documents.
    dismantle_node => DismantleNode {} -> ();
}

/// The functions that another shard's login calls here, in views of `docshard_data`.
pub const PULLER_FUNCTIONS: [&str; 4] = ["identity", "pack_part", "pack_share", "current_document"];
