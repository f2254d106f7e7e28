package train

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

func testPlace(store string, rank, size int) place {
	return place{rank: rank, size: size, generation: "7", store: store, node: "127.0.0.1"}
}

// formed returns a world of two, both ends in this process.
func formed(t *testing.T) (rank0, rank1 *world) {
	t.Helper()
	address := startStore(t)
	ctx := bounded(t, 10*time.Second)
	var other sync.WaitGroup
	var otherErr error
	other.Go(func() { rank1, otherErr = form(ctx, testPlace(address, 1, 2), 10*time.Second) })
	rank0, err := form(ctx, testPlace(address, 0, 2), 10*time.Second)
	other.Wait()
	if err != nil || otherErr != nil {
		t.Fatalf("form: %v, %v", err, otherErr)
	}
	t.Cleanup(func() { rank0.close(); rank1.close() })
	return rank0, rank1
}

func TestASilentRankIsGivenUp(t *testing.T) {
	rank0, rank1 := formed(t)
	rank0.timeout = 20 * time.Millisecond
	if _, _, err := rank0.reduce(0, false); err == nil || !strings.Contains(err.Error(), "rank 1") {
		t.Errorf("rank 0: got error %v, want one about rank 1", err)
	}
	rank1.timeout = 20 * time.Millisecond
	if _, _, err := rank1.reduce(0, false); err == nil || !strings.Contains(err.Error(), "rank 0") {
		t.Errorf("rank 1: got error %v, want one about rank 0", err)
	}
}

func TestRanksAtDifferentStepsStop(t *testing.T) {
	rank0, rank1 := formed(t)
	var other sync.WaitGroup
	other.Go(func() { rank1.reduce(4, false) }) // fails when rank 0 is closed
	_, _, err := rank0.reduce(3, false)
	rank0.close()
	other.Wait()
	if err == nil || !strings.Contains(err.Error(), "is at step 4, not 3") {
		t.Errorf("got error %v", err)
	}
}

func TestOneProcessPerRank(t *testing.T) {
	address := startStore(t)
	ctx, cancel := context.WithCancel(bounded(t, 10*time.Second))
	s, err := dialStore(ctx, address)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	var first sync.WaitGroup
	first.Go(func() { form(ctx, testPlace(address, 0, 2), time.Second) }) // until cancel
	if err := s.wait("/elastic-sgd/7/rank/0"); err != nil {
		t.Fatal(err)
	}
	if _, err := form(ctx, testPlace(address, 0, 2), time.Second); err == nil || !strings.Contains(err.Error(), "taken") {
		t.Errorf("got error %v, want that the rank is taken", err)
	}
	cancel()
	first.Wait()
}

func TestFormingIsBounded(t *testing.T) {
	for rank, name := range []string{"rank 0 waits for rank 1", "rank 1 waits for rank 0"} {
		t.Run(name, func(t *testing.T) {
			if _, err := form(bounded(t, 50*time.Millisecond), testPlace(startStore(t), rank, 2), time.Minute); err == nil {
				t.Error("formed a world of one rank out of two")
			}
		})
	}
}

func TestStrangersAreTurnedAway(t *testing.T) {
	address := startStore(t)
	ctx := bounded(t, 10*time.Second)
	var root sync.WaitGroup
	var rank0 *world
	var rootErr error
	root.Go(func() { rank0, rootErr = form(ctx, testPlace(address, 0, 3), 10*time.Second) })
	meeting, token := meetingPoint(t, ctx, address)

	rank1, err := net.Dial("tcp", meeting)
	if err != nil {
		t.Fatal(err)
	}
	defer rank1.Close()
	rank1.Write([]byte(helloMagic + token + "\x01\x00\x00\x00"))
	for _, c := range []struct{ name, hello string }{
		{"another protocol", "GET / HTTP/1.1\r\nHost: elastic-sgd.example\r\n\r\n"},
		{"another generation", helloMagic + strings.Repeat("A", tokenSize) + "\x02\x00\x00\x00"},
		{"a rank too high", helloMagic + token + "\x03\x00\x00\x00"},
		{"rank 0 itself", helloMagic + token + "\x00\x00\x00\x00"},
		{"a negative rank", helloMagic + token + "\xff\xff\xff\xff"},
		{"a rank that is there", helloMagic + token + "\x01\x00\x00\x00"},
		{"one that hangs up", helloMagic},
	} {
		conn, err := net.Dial("tcp", meeting)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		conn.Write([]byte(c.hello))
		conn.(*net.TCPConn).CloseWrite()
		conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("%s: got %d bytes, %v; want a closed connection", c.name, n, err)
		}
		conn.Close()
	}

	rank2, err := form(ctx, testPlace(address, 2, 3), 10*time.Second)
	root.Wait()
	if err != nil || rootErr != nil {
		t.Fatalf("form: %v, %v", err, rootErr)
	}
	rank2.close()
	rank0.close()
}

// meetingPoint is what rank 0 put into the store.
func meetingPoint(t *testing.T, ctx context.Context, address string) (meeting, token string) {
	t.Helper()
	s, err := dialStore(ctx, address)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	value, err := s.get("/elastic-sgd/7/root")
	if err != nil {
		t.Fatal(err)
	}
	meeting, token, _ = strings.Cut(value, " ")
	return meeting, token
}

func TestASilentStrangerDoesNotKeepRanksOut(t *testing.T) {
	address := startStore(t)
	ctx := bounded(t, 10*time.Second)
	s, err := dialStore(ctx, address)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	rank0 := newWorld(testPlace(address, 0, 2), 10*time.Second)
	rank0.hello = 20 * time.Millisecond
	var root sync.WaitGroup
	var rootErr error
	root.Go(func() { rootErr = rank0.gather(ctx, s, "/elastic-sgd/7/root") })
	meeting, _ := meetingPoint(t, ctx, address)
	silent, err := net.Dial("tcp", meeting)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	rank1, err := form(ctx, testPlace(address, 1, 2), 10*time.Second)
	root.Wait()
	if err != nil || rootErr != nil {
		t.Fatalf("form: %v, %v", err, rootErr)
	}
	rank1.close()
	rank0.close()
}
