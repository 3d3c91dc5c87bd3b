package libvirttest

import (
	"encoding/binary"
	"errors"
	"io"
)

// Numbers of libvirt's protocol.
const (
	remoteProgram = 0x20008086

	typeCall   = 0
	typeReply  = 1
	typeStream = 3

	statusOK       = 0
	statusError    = 1
	statusContinue = 2

	headerEnd = 28
	maxFrame  = 64 << 20
)

// frame is one message: a length, six numbers, and a body.
type frame []byte

func readFrame(r io.Reader) (frame, error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n < headerEnd || n > maxFrame {
		return nil, errors.New("no message of libvirt's")
	}
	f := make(frame, n)
	copy(f, length[:])
	_, err := io.ReadFull(r, f[4:])
	return f, err
}

func (f frame) number(at int) uint32 { return binary.BigEndian.Uint32(f[at:]) }
func (f frame) program() uint32      { return f.number(4) }
func (f frame) procedure() Procedure { return Procedure(f.number(12)) }
func (f frame) kind() uint32         { return f.number(16) }
func (f frame) serial() uint32       { return f.number(20) }
func (f frame) status() uint32       { return f.number(24) }
func (f frame) body() []byte         { return f[headerEnd:] }

// answer is a message of the daemon's about the call or stream of f.
func (f frame) answer(kind, status uint32, body []byte) frame {
	out := make(frame, headerEnd, headerEnd+len(body))
	copy(out[4:16], f[4:16])
	binary.BigEndian.PutUint32(out[16:], kind)
	copy(out[20:24], f[20:24])
	binary.BigEndian.PutUint32(out[24:], status)
	out = append(out, body...)
	binary.BigEndian.PutUint32(out, uint32(len(out)))
	return out
}

// errorBody is libvirt's error of a code: its domain is the remote driver, its level an error, the rest is not set.
func errorBody(code int, message string) []byte {
	var b []byte
	for _, n := range []uint32{uint32(code), 7, 1} {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	b = appendString(b, message)
	for _, n := range []uint32{2, 0, 0, 0, 0, 0, 0, 0} {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	return b
}

func appendString(b []byte, s string) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
	b = append(b, s...)
	return append(b, make([]byte, (4-len(s)%4)%4)...)
}

// takeString takes a string from the front of a body.
func takeString(b []byte) (s string, rest []byte, ok bool) {
	if len(b) < 4 {
		return "", nil, false
	}
	n := int(binary.BigEndian.Uint32(b))
	padded := n + (4-n%4)%4
	if n < 0 || len(b) < 4+padded {
		return "", nil, false
	}
	return string(b[4 : 4+n]), b[4+padded:], true
}

// takeVolume takes pool and name of a volume, as one string, from the front of a call's body.
func takeVolume(b []byte) (string, bool) {
	pool, b, ok := takeString(b)
	if !ok {
		return "", false
	}
	name, _, ok := takeString(b)
	return pool + "/" + name, ok
}
