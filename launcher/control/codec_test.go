package control

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"
)

// TestCodec: what is marshalled is the message, in memory of its size also where gRPC's own codec takes 1 MiB.
func TestCodec(t *testing.T) {
	for _, size := range []int{0, 100, exactAbove - 100, exactAbove, 100_000} {
		m := &FileChunk{Data: bytes.Repeat([]byte("x"), size)}
		want, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		got, err := newCodec().Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Materialize(), want) {
			t.Errorf("%d bytes: marshalled to %d bytes, want %d", size, got.Len(), len(want))
		}
		if len(want) > exactAbove && cap(got[0].ReadOnlyData()) > len(want)+len(want)/4 {
			t.Errorf("%d bytes: a buffer of %d", size, cap(got[0].ReadOnlyData()))
		}
		back := &FileChunk{}
		if err := newCodec().Unmarshal(got, back); err != nil || !proto.Equal(back, m) {
			t.Errorf("%d bytes: unmarshalled with %v to %d bytes", size, err, len(back.Data))
		}
	}
}
