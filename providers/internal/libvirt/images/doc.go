// Package images brings base images to hosts: each image once per host, whoever asks for it, checked while it is written.
//
// A base is a volume named by its source. It is usable when a marker volume lies beside it that names its length: an upload
// that stops short is accepted by libvirt without a word, and a base that is half there can be cloned from. The marker comes
// last. Bases are never deleted but when they have no marker and nobody writes them any more: machines depend on them.
package images
