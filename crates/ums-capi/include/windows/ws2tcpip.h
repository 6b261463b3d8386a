/* The sockets of Windows are not here. */
#error "ws2tcpip.h: the sockets of Windows are not provided; use <sys/socket.h>"
