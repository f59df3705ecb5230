package main

import "net"

// sure returns a listener whose connections end with the first write that fails. grpc-go
// stops writing then and leaves the end to its reader; but a write can fail alone, for want
// of memory (ENOBUFS, ENOMEM), and the client would wait for ever for answers that nobody
// writes.
func sure(l net.Listener) net.Listener { return sureListener{l} }

type sureListener struct{ net.Listener }

func (l sureListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return sureConn{conn}, nil
}

type sureConn struct{ net.Conn }

func (c sureConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil {
		c.Close()
	}
	return n, err
}
