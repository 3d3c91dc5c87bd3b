// Package sshdial opens a stream to a Unix socket of another machine over SSH.
//
// One Conn owns its TCP connection, its SSH session and its channel, so that closing it leaves nothing behind on either side.
// The host key is always checked against known_hosts, unless the class asks for none of it: nothing that is wrong with
// known_hosts makes a connection less strict.
package sshdial
