package rootless

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/undo"
)

// A Forward is a port of the machine that leads into the network namespace.
type Forward struct {
	Protocol  string     `json:"proto"`     // tcp or udp
	HostIP    netip.Addr `json:"host_addr"` // 0.0.0.0 is all; IPv4
	HostPort  int32      `json:"host_port"`
	GuestIP   netip.Addr `json:"guest_addr"` // of a pod, or Guest; IPv4
	GuestPort int32      `json:"guest_port"`
}

// Guest is the address of the network namespace itself.
var Guest = netip.MustParseAddr(slirpGuest)

// Ports are the forwarded ports of an instance. slirp4netns has them, so that they outlive this process.
// nil has none.
type Ports struct{ socket string }

// OpenPorts returns the ports of an instance; nil if its network is the machine's.
func OpenPorts(state string) *Ports {
	if !Entered() || os.Getenv(networkEnv) == "" {
		return nil
	}
	return &Ports{slirpSocket(state)}
}

// maxAnswer bounds an answer: an entry has 130 bytes, and a machine 131 070 ports.
const maxAnswer = 20 << 20

type entry struct {
	ID int `json:"id"`
	Forward
}

// Set makes all ports lead where want says, and no others.
func (p *Ports) Set(ctx context.Context, want []Forward) error {
	if p == nil {
		return nil
	}
	has, err := p.list(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range has {
		if !slices.Contains(want, e.Forward) {
			errs = append(errs, p.remove(ctx, e.ID))
		}
	}
	for _, f := range want { // one that is taken does not keep the others
		if !slices.ContainsFunc(has, func(e entry) bool { return e.Forward == f }) {
			errs = append(errs, p.Add(ctx, []Forward{f}))
		}
	}
	return errors.Join(errs...)
}

// Add makes ports lead to a pod, all or none; none may be in use.
func (p *Ports) Add(ctx context.Context, want []Forward) (err error) {
	var steps undo.Stack
	defer steps.RunIf(&err)
	for _, f := range want {
		var answer struct{ ID int }
		if err := p.ask(ctx, "add_hostfwd", f, &answer); err != nil {
			// It tells no reason.
			return fault.Unavailable.Errorf("host port %d of %s, %s: it is in use, or this user may not use it: %v", f.HostPort, f.HostIP, f.Protocol, err)
		}
		steps.AddContext(ctx, "host port", func(ctx context.Context) error { return p.remove(ctx, answer.ID) })
	}
	return nil
}

// Remove makes ports lead nowhere; those that do, or lead elsewhere, are left.
func (p *Ports) Remove(ctx context.Context, list []Forward) error {
	if p == nil || len(list) == 0 {
		return nil
	}
	has, err := p.list(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range has {
		if slices.Contains(list, e.Forward) {
			errs = append(errs, p.remove(ctx, e.ID))
		}
	}
	return errors.Join(errs...)
}

func (p *Ports) list(ctx context.Context) ([]entry, error) {
	var answer struct{ Entries []entry }
	err := p.ask(ctx, "list_hostfwd", nil, &answer)
	return answer.Entries, err
}

func (p *Ports) remove(ctx context.Context, id int) error {
	return p.ask(ctx, "remove_hostfwd", map[string]int{"id": id}, new(struct{}))
}

// ask sends a request and reads the answer into to.
func (p *Ports) ask(ctx context.Context, what string, arguments, to any) (err error) {
	defer func() {
		if err != nil {
			err = fault.Unavailable.Errorf("%s: %s: %v", slirpProgram, what, err)
		}
	}()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", p.socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := json.NewEncoder(conn).Encode(map[string]any{"execute": what, "arguments": arguments}); err != nil {
		return err
	}
	if err := conn.(*net.UnixConn).CloseWrite(); err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(conn, maxAnswer))
	if err != nil {
		return err
	}
	answer := struct {
		Return any
		Error  *struct{ Desc string }
	}{Return: to}
	if err := json.Unmarshal(text, &answer); err != nil {
		return err
	}
	if answer.Error != nil {
		return errors.New(answer.Error.Desc)
	}
	return json.Unmarshal(text, to) // list_hostfwd answers without "return"
}
