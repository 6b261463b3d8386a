/* The sockets of Windows are not here. */
#error "WinSock2.h: the sockets of Windows are not provided; use <sys/socket.h>"
