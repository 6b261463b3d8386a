/*
 * sal.h for Linux: Microsoft's annotations of source code. They tell a checker of theirs what a
 * parameter is for, and have no effect here.
 */
#ifndef UMS_SAL_H
#define UMS_SAL_H
#pragma once

/* Without parameters */
#define _In_
#define _In_opt_
#define _In_z_
#define _In_opt_z_
#define _Out_
#define _Out_opt_
#define _Out_z_
#define _Inout_
#define _Inout_opt_
#define _Inout_z_
#define _Inout_opt_z_
#define _Outptr_
#define _Outptr_opt_
#define _Outptr_result_maybenull_
#define _Outptr_opt_result_maybenull_
#define _Outptr_result_nullonfailure_
#define _Outptr_opt_result_nullonfailure_
#define _Outptr_result_z_
#define _Outptr_opt_result_z_
#define _Outptr_result_maybenull_z_
#define _Outptr_opt_result_maybenull_z_
#define _COM_Outptr_
#define _COM_Outptr_opt_
#define _COM_Outptr_result_maybenull_
#define _COM_Outptr_opt_result_maybenull_
#define _Outref_
#define _Outref_result_maybenull_
#define _Outref_result_nullonfailure_
#define _Deref_out_
#define _Deref_out_opt_
#define _Deref_inout_
#define _Reserved_
#define _Const_
#define _Printf_format_string_
#define _Scanf_format_string_
#define _Scanf_s_format_string_
#define _Ret_z_
#define _Ret_maybenull_
#define _Ret_maybenull_z_
#define _Ret_notnull_
#define _Ret_null_
#define _Ret_valid_
#define _Result_nullonfailure_
#define _Result_zeroonfailure_
#define _Check_return_
#define _Must_inspect_result_
#define _Maybenull_
#define _Notnull_
#define _Null_
#define _Valid_
#define _Notvalid_
#define _Maybevalid_
#define _Null_terminated_
#define _NullNull_terminated_
#define _Points_to_data_
#define _Literal_
#define _Notliteral_
#define _Readonly_
#define _Writable_
#define _Field_z_
#define _Pre_
#define _Post_
#define _Pre_valid_
#define _Pre_opt_valid_
#define _Pre_invalid_
#define _Pre_notnull_
#define _Pre_maybenull_
#define _Pre_null_
#define _Pre_z_
#define _Pre_unknown_
#define _Pre_readonly_
#define _Pre_writeonly_
#define _Post_valid_
#define _Post_invalid_
#define _Post_ptr_invalid_
#define _Post_notnull_
#define _Post_maybenull_
#define _Post_null_
#define _Post_z_
#define _Prepost_valid_
#define _Prepost_opt_valid_
#define _Prepost_z_
#define _Prepost_opt_z_
#define _Deref_pre_
#define _Deref_post_
#define _Deref_prepost_
#define _Use_decl_annotations_
#define _Notref_
#define _Raises_SEH_exception_
#define _Maybe_raises_SEH_exception_
#define _Analysis_noreturn_
#define _Enum_is_bitflag_
#define _Strict_type_match_
#define _Frees_ptr_
#define _Frees_ptr_opt_
#define _Interlocked_
#define _Interlocked_operand_
#define _No_competing_thread_
#define _No_competing_thread_begin_
#define _No_competing_thread_end_
#define _IRQL_is_cancel_
#define _Requires_no_locks_held_
#define _IRQL_requires_same_
#define _IRQL_saves_
#define _Pre_defensive_
#define _Post_defensive_
#define _IRQL_restores_

/* With one parameter */
#define _In_reads_(a)
#define _In_reads_opt_(a)
#define _In_reads_bytes_(a)
#define _In_reads_bytes_opt_(a)
#define _In_reads_z_(a)
#define _In_reads_opt_z_(a)
#define _In_reads_or_z_(a)
#define _In_reads_or_z_opt_(a)
#define _In_range_(a)
#define _Deref_in_range_(a)
#define _Deref_out_range_(a)
#define _Deref_ret_range_(a)
#define _In_bound_(a)
#define _Out_bound_(a)
#define _Out_range_(a)
#define _Ret_range_(a)
#define _Field_range_(a)
#define _Pre_range_(a)
#define _Post_range_(a)
#define _Out_writes_(a)
#define _Out_writes_opt_(a)
#define _Out_writes_bytes_(a)
#define _Out_writes_bytes_opt_(a)
#define _Out_writes_z_(a)
#define _Out_writes_opt_z_(a)
#define _Out_writes_all_(a)
#define _Out_writes_all_opt_(a)
#define _Out_writes_bytes_all_(a)
#define _Out_writes_bytes_all_opt_(a)
#define _Inout_updates_(a)
#define _Inout_updates_opt_(a)
#define _Inout_updates_z_(a)
#define _Inout_updates_opt_z_(a)
#define _Inout_updates_bytes_(a)
#define _Inout_updates_bytes_opt_(a)
#define _Inout_updates_all_(a)
#define _Inout_updates_all_opt_(a)
#define _Inout_updates_bytes_all_(a)
#define _Inout_updates_bytes_all_opt_(a)
#define _Outptr_result_buffer_(a)
#define _Outptr_opt_result_buffer_(a)
#define _Outptr_result_buffer_all_(a)
#define _Outptr_opt_result_buffer_all_(a)
#define _Outptr_result_buffer_maybenull_(a)
#define _Outptr_opt_result_buffer_maybenull_(a)
#define _Outptr_result_bytebuffer_(a)
#define _Outptr_opt_result_bytebuffer_(a)
#define _Outptr_result_bytebuffer_all_(a)
#define _Outptr_opt_result_bytebuffer_all_(a)
#define _Outptr_result_bytebuffer_maybenull_(a)
#define _Outptr_opt_result_bytebuffer_maybenull_(a)
#define _Ret_writes_(a)
#define _Ret_writes_z_(a)
#define _Ret_writes_bytes_(a)
#define _Ret_writes_maybenull_(a)
#define _Ret_writes_maybenull_z_(a)
#define _Ret_writes_bytes_maybenull_(a)
#define _Field_size_(a)
#define _Field_size_opt_(a)
#define _Field_size_full_(a)
#define _Field_size_full_opt_(a)
#define _Field_size_bytes_(a)
#define _Field_size_bytes_opt_(a)
#define _Field_size_bytes_full_(a)
#define _Field_size_bytes_full_opt_(a)
#define _Struct_size_bytes_(a)
#define _Readable_bytes_(a)
#define _Readable_elements_(a)
#define _Writable_bytes_(a)
#define _Writable_elements_(a)
#define _Pre_readable_size_(a)
#define _Pre_writable_size_(a)
#define _Pre_readable_byte_size_(a)
#define _Pre_writable_byte_size_(a)
#define _Post_readable_size_(a)
#define _Post_writable_size_(a)
#define _Post_readable_byte_size_(a)
#define _Post_writable_byte_size_(a)
#define _Pre_satisfies_(a)
#define _Post_satisfies_(a)
#define _Post_equal_to_(a)
#define _Satisfies_(a)
#define _Unchanged_(a)
#define _Success_(a)
#define _Return_type_success_(a)
#define _On_failure_(a)
#define _Always_(a)
#define _Group_(a)
#define _Analysis_mode_(a)
#define _Function_class_(a)
#define _Called_from_function_class_(a)
#define _Acquires_lock_(a)
#define _Acquires_exclusive_lock_(a)
#define _Acquires_shared_lock_(a)
#define _Acquires_nonreentrant_lock_(a)
#define _Releases_lock_(a)
#define _Releases_exclusive_lock_(a)
#define _Releases_shared_lock_(a)
#define _Releases_nonreentrant_lock_(a)
#define _Requires_lock_held_(a)
#define _Requires_lock_not_held_(a)
#define _Requires_exclusive_lock_held_(a)
#define _Requires_shared_lock_held_(a)
#define _Guarded_by_(a)
#define _Write_guarded_by_(a)
#define _Has_lock_kind_(a)
#define _Has_lock_level_(a)
#define _Create_lock_level_(a)
#define _IRQL_requires_(a)
#define _IRQL_requires_max_(a)
#define _IRQL_requires_min_(a)
#define _IRQL_raises_(a)
#define _IRQL_always_function_max_(a)
#define _IRQL_always_function_min_(a)
#define _Printf_format_string_params_(a)
#define _Scanf_format_string_params_(a)
#define _Scanf_s_format_string_params_(a)
#define _In_reads_to_ptr_(a)
#define _In_reads_to_ptr_opt_(a)
#define _In_reads_to_ptr_z_(a)

/* With several */
#define _Out_writes_to_(a, b)
#define _Out_writes_to_opt_(a, b)
#define _Out_writes_bytes_to_(a, b)
#define _Out_writes_bytes_to_opt_(a, b)
#define _Out_writes_to_ptr_(a, b)
#define _Out_writes_to_ptr_opt_(a, b)
#define _Out_writes_to_ptr_z_(a, b)
#define _Inout_updates_to_(a, b)
#define _Inout_updates_to_opt_(a, b)
#define _Inout_updates_bytes_to_(a, b)
#define _Inout_updates_bytes_to_opt_(a, b)
#define _Outptr_result_buffer_to_(a, b)
#define _Outptr_opt_result_buffer_to_(a, b)
#define _Outptr_result_bytebuffer_to_(a, b)
#define _Outptr_opt_result_bytebuffer_to_(a, b)
#define _Ret_writes_to_(a, b)
#define _Ret_writes_bytes_to_(a, b)
#define _Ret_writes_to_maybenull_(a, b)
#define _Ret_writes_bytes_to_maybenull_(a, b)
#define _Field_size_part_(a, b)
#define _Field_size_part_opt_(a, b)
#define _Field_size_bytes_part_(a, b)
#define _Field_size_bytes_part_opt_(a, b)
#define _When_(a, b)
#define _At_(a, b)
#define _Post_same_lock_(a, b)
#define _Lock_level_order_(a, b)
#define _IRQL_restores_global_(a, b)
#define _IRQL_saves_global_(a, b)
#define _At_buffer_(a, b, c, d)

/* A statement that the checker believes. It is not evaluated. */
#define _Analysis_assume_(what) ((void)0)
#define _Analysis_assume_nullterminated_(what) ((void)0)
#define __analysis_assume(what) ((void)0)

/* The annotations of older sources */
#define __bcount(n)
#define __ecount(n)
#define __field_bcount(n)
#define __field_ecount(n)
#define __in_bcount(n)
#define __in_ecount(n)
#define __in_bcount_opt(n)
#define __in_ecount_opt(n)
#define __out_bcount(n)
#define __out_ecount(n)
#define __out_bcount_opt(n)
#define __out_ecount_opt(n)
#define __out_bcount_part(n, m)
#define __out_ecount_part(n, m)
#define __inout_bcount(n)
#define __inout_ecount(n)
#define __inout_bcount_opt(n)
#define __inout_ecount_opt(n)
#define __deref_out
#define __deref_out_opt
#define __deref_opt_out
#define __deref_inout
#define __checkReturn
#define __nullterminated
#define __drv_aliasesMem
#define __drv_freesMem(kind)
#define __drv_allocatesMem(kind)
/* libstdc++ uses these names itself. A C++ program that needs them defines UMS_OLD_SAL, and includes
 * the headers of the C++ library before this one. */
#if !defined(__cplusplus) || defined(UMS_OLD_SAL)
#define __in
#define __in_opt
#define __out
#define __out_opt
#define __inout
#define __inout_opt
#define __success(what)
#endif
#ifdef UMS_OLD_SAL /* The kernel's headers use this name themselves. */
#define __reserved
#endif

#endif
