package main

import "net"

// sure returns a listener whose connections are closed at the first failed write. grpc-go then
// stops writing and leaves the closing to its reader. But a write can fail alone, for lack of
// memory (ENOBUFS, ENOMEM), and the client would wait forever for responses that are never
// written.
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
